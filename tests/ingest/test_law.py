"""A verdict follows from the message alone, and whatever base lands, tracking has counted."""

import gzip
import json
import random
from typing import Any

import pytest

from tests.ingest import law
from tests.ingest.judged import judged
from tests.watermark.builders import START, at
from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.contract.heartbeat import PATIENCE, HeartbeatReader
from tidemark.pipeline.ingest.outcome import Side


@pytest.mark.parametrize("seed", range(40))
def test_a_verdict_does_not_depend_on_the_batch_the_order_or_the_moment(seed: int) -> None:
    with law.small_bounds():
        law.check(seed, cuts=3)


def test_bombs_beside_good_messages_change_nothing_of_these() -> None:
    """At the real bounds: each bomb inflates to more than a message may."""
    good = [law.message(number, gzip.compress(honest(number)), {}, number) for number in range(10)]
    bomb, reader = gzip.compress(b" " * 41_000_000), HeartbeatReader(law.OF_THE_PAYLOAD)
    messages = [law.message(100 + number, bomb, {}, 0) for number in range(14)] + good
    landed = judged(messages, reader, None)
    assert (len(landed.heartbeats), len(landed.rejected)) == (10, 14)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_revision_is_waited_for_as_long_as_the_side_has_patience_and_no_longer(side: Side, share: float) -> None:
    data, rng = law.avro(0.0, "a"), random.Random(1)
    patience = PATIENCE if side is Side.BASE else 2 * PATIENCE
    appears_us = {"r0": to_us(START) + int(share * duration_us(patience))}
    one = law.message(0, data, {law.SCHEMA_REVISION: "r0"}, 0)
    begins = 0.9 * patience.total_seconds()
    found = law.judged([one], law.BY_REVISION, appears_us, side, Often(rng), begins)
    is_good = bool(found.landed) if side is Side.BASE else found.histogram.oldest_event_us is not None
    assert is_good == (share < 1)


class Often(random.Random):
    """Looks again ten times a second."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng.random())

    def choice(self, seq: Any) -> Any:
        return seq[0]


def honest(number: int) -> bytes:
    return json.dumps({"at": to_us(at(number)) // 1000, "device": "a", "id": str(number)}).encode()
