"""The message shapes that the demonstration publishes. They use none of the code that reads messages."""
