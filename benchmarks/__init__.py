"""The speed and the size of each stage beside a reference for the same work in the same run: `make bench`.

The stages are the pipeline's own functions on real parts; nothing here asserts a time.
"""
