"""Lets your programs read the watermark, and ask whether a window is closed: the public API.

    from tidemark.watermark import read_watermark

    if read_watermark("heartbeats.toml").is_closed("2026-11-21T05-20Z"):
        ...

It needs the settings file and read access to the lake, but no Pub/Sub, Dagster or Spark. Its names are stable across
releases; the packages below `tidemark` may change.
"""

from tidemark.pipeline.quality.gate import Watermark, read_watermark

__all__ = ["Watermark", "read_watermark"]
