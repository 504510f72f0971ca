"""The message shapes that the demonstration publishes. They share no code with the pipeline's reader, so that they can
test it."""
