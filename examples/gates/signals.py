"""A SQLMesh signal that accepts the batches that end below tidemark's watermark. This example is not run in tests.

In a model: `signals (below_the_watermark(config := '/etc/tidemark.toml'))`."""

from sqlmesh import DatetimeRanges, signal

from tidemark.watermark import read_watermark


@signal()
def below_the_watermark(batch: DatetimeRanges, config: str) -> bool | DatetimeRanges:
    watermark = read_watermark(config)
    return [(start, end) for start, end in batch if watermark.has_reached(end)]
