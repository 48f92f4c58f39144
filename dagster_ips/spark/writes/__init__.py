"""One file per write mode. Each writes a frame to a branch and decides nothing about publishing."""
