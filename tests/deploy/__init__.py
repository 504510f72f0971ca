"""What `deploy/` says is true of the program: every file parses, and every name in it exists."""
