"""Housekeeping and repair: what deletes, rewrites or mends files of the lake."""
