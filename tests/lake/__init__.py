"""The lake, on disk and in a bucket."""
