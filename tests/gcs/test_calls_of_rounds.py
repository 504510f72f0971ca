"""What a round of continuous landing asks of Cloud Storage: a few calls, and one for each file."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.scale import ROUND_CLASS_A, ROUND_CLASS_B
from tests.gcs.fault_proxy import FaultProxy
from tests.gcs.ticking import TickingOnABucket
from tests.ingest.fakes import CONTRACT
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.budget import Budget
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.rounds import Provisional, Settled, settle, take_heartbeats, take_times
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

READERS = 2
A_READER = Budget(max_messages=4, max_bytes=1 << 20, max_time=timedelta(seconds=5), batch_messages=4)


def round_of(world: TickingOnABucket) -> tuple[Settled, int]:
    """A round of two readers of each subscription; also how many files they have written."""
    reader = HeartbeatReader(CONTRACT)
    good = NewFiles(world.landed_in, world.landed_in.schema, world.clock)
    bad = NewFiles(world.rejected_in, QUARANTINE, world.clock)
    remembered = Provisional(RememberedCopies())
    of_base = [
        take_heartbeats(
            world.base,
            heartbeats=good,
            quarantine=bad,
            watermark=world.log.newest_watermark(),
            reader=reader,
            budget=A_READER,
            clock=world.clock,
        )
        for _ in range(READERS)
    ]
    of_tracking = [
        take_times(
            world.tracking, reader=reader, remembered=remembered, laggard=None, budget=A_READER, clock=world.clock
        )
        for _ in range(READERS)
    ]
    settled = settle(
        of_base,
        of_tracking,
        base=world.base,
        tracking=world.tracking,
        heartbeats=good,
        quarantine=bad,
        log=world.landing_log,
        clock=world.clock,
        says={"tidemark.run": "run"},
    )
    return settled, sum(len(one.heartbeats) + len(one.rejected) for one in of_base)


def test_a_round_asks_for_a_few_calls_and_one_for_each_file(
    tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy
) -> None:
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    for _ in range(2):
        world.publish()
        world.tick()
        world.publish()
        round_of(world)
    for _ in range(3):
        world.publish()
        proxy.calls()
        settled, files = round_of(world)
        found = Counter(call.price_class for call in proxy.calls())
        assert settled.landed.messages == 6
        assert files == 3
        assert found["A"] <= ROUND_CLASS_A + files
        assert found["B"] <= ROUND_CLASS_B
        world.track()
    world.check_that_all_is_there_once()
