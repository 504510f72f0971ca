"""Decides again, from a trace of messages or from a lake's own log."""
