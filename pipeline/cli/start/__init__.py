"""Commands that set a pipeline up, check it and run it."""
