"""The message shapes that the demonstration publishes. They share no code with the pipeline's reader except the
names of reasons, so that they can test the reader."""
