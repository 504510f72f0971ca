"""The message shapes that the demonstration publishes. None of them uses what reads messages."""
