"""Broken judgements of payloads that are planted: each says by its name what it does wrong."""

from datetime import timedelta
from typing import Any

from tidemark.pipeline.clock import from_us
from tidemark.pipeline.contract.heartbeat import PATIENCE, Undecided
from tidemark.pipeline.contract.payloads import decoder
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.revisions import Asking
from tidemark.pipeline.ingest import take
from tidemark.pipeline.ingest.outcome import Waiting

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


def wait_as_long_as_before(waits: Any, ack_id: str, published_us: int, undecided: Undecided) -> None:
    """However soon the message's patience ends."""
    published = from_us(published_us)
    wait = max(timedelta(seconds=5), waits._now - published)
    waits.by_seconds.setdefault(int(wait.total_seconds()), []).append(ack_id)
    waits.all += Waiting(1, published, undecided.why)
