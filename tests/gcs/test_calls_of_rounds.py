"""What a round of readers on Spark asks of Cloud Storage: a few calls, and one for each file."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.scale import ROUND_CLASS_A, ROUND_CLASS_B
from tests.gcs.fault_proxy import FaultProxy
from tests.gcs.ticking import TickingOnABucket
from tests.ingest.fakes import CONTRACT
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Settled, Taken
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import Keeper, Landing, Tracking, take
from tidemark.pipeline.lake.tables.delta_log import says_of
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.usage import Usage

pytestmark = pytest.mark.gcs

READERS, A_READER = 2, 4
"""Readers of each subscription, and the messages that one of them takes."""


def round_of(world: TickingOnABucket) -> tuple[Settled, int]:
    """A round of two readers of each subscription; also how many files they have written."""
    reader, watermark, clock = HeartbeatReader(CONTRACT), world.log.newest().watermark, world.clock

    def taken(subscription: PubSubSubscription, keeper: Keeper) -> Taken:
        batch = subscription.pull(A_READER, 1 << 20, 5.0)
        return take([batch], subscription, keeper, clock, clock.monotonic() + 5.0)

    tables = world.landed_in, world.rejected_in
    of_base = [taken(world.base, Landing(*tables, reader, lambda: watermark, clock)) for _ in range(READERS)]
    of_tracking = [taken(world.tracking, Tracking(reader, RememberedCopies(), None, clock)) for _ in range(READERS)]
    settling = Settling(world.landing_log, clock, world.tracking, world.base, world.landed_in, world.rejected_in)
    settled = settling.settle([*of_base, *of_tracking], says_of("run", 0), Usage())
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
