"""What a consumer's table says: which captures it holds, whose it is, and what others wrote to it."""
