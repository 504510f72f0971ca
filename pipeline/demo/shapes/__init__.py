"""The message shapes that the demonstration publishes, one module each. None of them uses what reads messages."""
