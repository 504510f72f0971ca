"""Housekeeping and repair of a lake: deletes old files, merges small ones, and finds damage."""
