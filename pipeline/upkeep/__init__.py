"""Housekeeping and repair: what deletes, rewrites or repairs files of the lake."""
