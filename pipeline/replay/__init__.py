"""Replays the watermark's decisions from a trace of messages or from a lake's log."""
