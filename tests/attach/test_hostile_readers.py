"""Readers of base that do what nobody hopes for, and what attach makes of it and says."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.attach.hostile import BAND, Beside, beside
from tests.cli.command import said_here
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.decision import Reason


@pytest.fixture
def world(tmp_path: Path, fresh_pubsub: PubSubSettings) -> Iterator[Beside]:
    assert fresh_pubsub.emulator_host
    with beside(tmp_path, fresh_pubsub.emulator_host, fresh_pubsub.project) as found:
        yield found


def test_a_message_that_is_never_acknowledged_pins_the_watermark_and_explain_names_the_backlog(world: Beside) -> None:
    world.traffic()
    time.sleep(BAND.total_seconds())
    kept_at = world.publish(1)
    message = world.reader.pull(request={"subscription": world.base, "max_messages": 1}, timeout=5).received_messages[0]
    world.traffic(seconds=5, keep=[message.message.message_id])
    decision = world.decision()
    assert decision.watermark is not None
    assert decision.watermark <= kept_at
    assert decision.reason is Reason.PINNED_BY_BACKLOG
    assert "base has a backlog" in said_here(world.config.parent, ("explain",), {}).out
    world.reader.acknowledge(subscription=world.base, ack_ids=[message.ack_id])
    world.traffic()
    assert (after := world.decision().watermark) is not None
    assert after > kept_at


def test_a_purge_moves_the_watermark_past_what_nobody_read(world: Beside) -> None:
    world.traffic()
    unread = world.publish()
    time.sleep(2)
    world.publish()
    world.attached.tick()
    before = world.decision().watermark
    assert before is not None
    assert before <= unread
    future = datetime.now(UTC) + timedelta(seconds=30)
    world.reader.seek(request={"subscription": world.base, "time": future})
    time.sleep(BAND.total_seconds() + 0.5)
    world.attached.tick()
    after = world.decision().watermark
    assert after is not None
    assert after > unread
