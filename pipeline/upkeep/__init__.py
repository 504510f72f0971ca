"""Housekeeping and repair: deletes, rewrites and repairs files of the lake."""
