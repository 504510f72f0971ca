"""Broken judgements of payloads that are planted: each says by its name what it does wrong."""

from datetime import timedelta
from typing import Any

from tidemark.pipeline.contract.heartbeat import PATIENCE
from tidemark.pipeline.contract.payloads import decoder
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import Asking
from tidemark.pipeline.ingest import take

INFLATED = 100
"""Bytes that a batch may have."""

original_inflated = decoder._Room.inflated


def inflated_within_a_batch(room: Any, data: bytes) -> bytes:
    """What comes after so many bytes of a batch is rejected."""
    content = original_inflated(room, data)
    if room.left < decoder.PART_BYTES - INFLATED:
        raise Unreadable("too much of this batch is compressed")
    return content


def asking_without_patience(at_us: int, _patience_us: int) -> Asking:
    return Asking(at_us, 0)


def tracking_with_the_patience_of_base(*parts: Any) -> take.Tracking:
    return take.Tracking(*parts, patience=PATIENCE)


def wait_as_long_as_before(waited: timedelta, _patience: timedelta) -> int:
    """However soon the message's patience ends."""
    return int(max(timedelta(seconds=5), waited).total_seconds())
