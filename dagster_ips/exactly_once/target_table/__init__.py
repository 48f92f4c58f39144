"""What a consumer's table says: which captures it contains, who owns it, and what others wrote to it."""
