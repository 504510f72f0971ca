"""The watermark for other systems: the public API to gate on it.

    from tidemark.watermark import read_watermark

    if read_watermark("heartbeats.toml").is_closed("2026-11-21T05-20Z"):
        ...

It needs the settings file and the right to read the lake; no Pub/Sub, Dagster or Spark. It keeps its names from release
to release; the packages below `tidemark` may change.
"""

from tidemark.pipeline.quality.gate import Watermark, read_watermark

__all__ = ["Watermark", "read_watermark"]
