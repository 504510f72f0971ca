"""Landing under a name: served when asked again, one winner of any number of readers, and nothing lost to a crash."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from tests.ingest.fakes import Crash, World
from tests.ingest.test_landing import publish
from tests.watermark.builders import at
from tidemark.pipeline.errors import LandingOver
from tidemark.pipeline.ingest.source.named import land_named
from tidemark.pipeline.ingest.take import HOURS_AT_ONCE, Batches, Budget
from tidemark.pipeline.lake.landings import MANIFEST, PIECE, LandedBatches, NamedLanding
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.lake.store.objects import ObjectStore

NAME = "run/000000001-0000"
BUDGET = Budget(max_messages=100, max_bytes=1 << 20, max_time=timedelta(seconds=20), batch_messages=3)


class PiecesWorld(World):
    """A world whose base subscription is landed under names, as objects; acknowledged must mean listed there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wait(1000)

    def land_as(
        self, name: str, *, is_over: Callable[[], bool] = lambda: False, budget: Budget = BUDGET
    ) -> NamedLanding:
        return Notes(self.objects, MANIFEST).find(name) or land_named(  # as a reader does
            name,
            Batches(self.base, budget, self.clock),
            objects=self.objects,
            quarantine=self.quarantine,
            watermark=at(902),
            reader=self.reader,
            is_over=is_over,
        )

    def landed_ids(self) -> list[str]:
        """What the manifests list."""
        objects = self.stored()
        names = [name for name in objects.names("landings/") if name.endswith(".json")]
        landings = [
            Notes(objects, MANIFEST).find(name.removeprefix("landings/").removesuffix(".json")) for name in names
        ]
        return [identity for landing in landings if landing is not None for identity in ids(landing, objects)]


@pytest.fixture
def world(tmp_path: Path) -> PiecesWorld:
    return PiecesWorld(tmp_path)


def ids(landing: NamedLanding, objects: ObjectStore) -> list[str]:
    return sorted(
        identity for piece in landing.pieces for identity in Notes(objects, PIECE).read(piece)["message_id"].to_pylist()
    )


def parquet_files(world: World) -> set[str]:
    return {path.name for path in (world.folder / "landings").rglob("*.parquet")}


def test_everything_is_durable_and_listed_before_anything_is_acknowledged(world: PiecesWorld) -> None:
    publish(world, 5)
    world.topic.publish("yesterday")
    landing = world.land_as(NAME)
    manifest = MANIFEST.name(NAME)
    assert world.steps.taken[-4:] == [
        f"create {manifest}",
        f"created {manifest}",
        "acknowledge base",
        "acknowledged base",
    ]
    assert len(world.steps.of_kind("acknowledge base")) == 1
    assert ids(landing, world.objects) == ["1", "2", "3", "4", "5"]
    assert sum(Notes(world.objects, PIECE).read(piece)["late"].to_pylist().count(True) for piece in landing.pieces) == 2
    assert landing.oldest_publish_time == at(1000)
    assert world.quarantined_ids() == ["6"]
    assert world.base.unacknowledged == []


def test_a_landing_may_have_any_number_of_event_hours(world: PiecesWorld) -> None:
    many = HOURS_AT_ONCE + 100
    world.wait(3600 * many)
    for hour in range(many):
        world.topic.publish(3600 * hour)
    landing = world.land_as(NAME, budget=replace(BUDGET, max_messages=many, batch_messages=many))
    assert len(ids(landing, world.objects)) == many


def test_a_repeated_request_is_served_what_landed_and_pulls_nothing(world: PiecesWorld) -> None:
    publish(world, 5)
    first = world.land_as(NAME)
    publish(world, 5, first=950)
    world.restart()
    again = world.land_as(NAME)
    assert world.steps.taken == []
    assert again == first
    assert len(ids(world.land_as("run/000000002-0000"), world.objects)) == 5


def test_the_losing_twin_acknowledges_nothing_and_serves_the_winners_rows(world: PiecesWorld, tmp_path: Path) -> None:
    publish(world, 3)
    twin = PiecesWorld(tmp_path)
    twin.clock, twin.base = world.clock, world.base
    winners: list[NamedLanding] = []

    def twin_first() -> bool:
        """Asked once before anything is pulled: by then the twin has pulled nothing either, and lands at once."""
        if not winners:
            winners.append(twin.land_as(NAME))
            publish(world, 2, first=950)
        return False

    served = world.land_as(NAME, is_over=twin_first)
    assert (served, ids(served, world.objects)) == (winners[0], ["1", "2", "3"])
    assert parquet_files(world) == {Path(piece).name for piece in winners[0].pieces}
    assert [message.message_id for message in world.base.unacknowledged] == ["4", "5"]
    world.wait(60)
    assert len(ids(world.land_as("run/000000002-0000"), world.objects)) == 2


def test_a_reader_that_dies_anywhere_loses_nothing(tmp_path: Path) -> None:
    for dies_at in count(1):
        world = PiecesWorld(tmp_path / str(dies_at))
        publish(world, 5)
        world.topic.publish("yesterday")
        world.steps.dies_at = dies_at
        try:
            world.land_as(NAME)
            break  # it has fewer steps than that: each of them was tried
        except Crash:
            pass
        world.restart()
        world.wait(60)
        world.land_as(NAME)
        world.wait(60)
        world.land_as("run/000000002-0000")
        assert world.base.unacknowledged == [], dies_at
        assert set(world.landed_ids()) == {"1", "2", "3", "4", "5"}, dies_at
        assert set(world.quarantined_ids()) == {"6"}, dies_at
    assert dies_at > 12


# The end of a batch


def test_the_end_of_a_batch_deletes_what_landed_up_to_it_but_the_last_ones(world: PiecesWorld) -> None:
    batches = LandedBatches(world.objects, "run")
    for number in range(1, 6):
        publish(world, 1)
        world.land_as(batches.name(number, 0))
        assert not batches.is_over(number)
        batches.end(number, keep=2)
        assert [batches.is_over(other) for other in (number, number + 1)] == [True, False]
    names = sorted(path.name for path in (world.folder / "landings" / "run").iterdir())
    assert [name for name in names if "over" in name] == ["over-000000004", "over-000000005"]
    assert [name.split("-")[0] for name in names if "over" not in name] == ["000000004"] * 2 + ["000000005"] * 2


def test_a_straggler_of_a_batch_that_is_over_acknowledges_nothing(world: PiecesWorld) -> None:
    batches = LandedBatches(world.objects, "run")
    publish(world, 3)
    asked: list[bool] = []

    def is_over() -> bool:
        asked.append(batches.is_over(1))
        if len(asked) == 1:  # the straggler has begun; meanwhile somebody else lands, and the batch is ended
            batches.end(1, keep=0)
        return asked[-1]

    with pytest.raises(LandingOver, match="Nothing was acknowledged"):
        world.land_as(NAME, is_over=is_over)
    assert asked == [False, True]
    assert len(world.base.unacknowledged) == 3
    world.restart()
    batches.end(1, keep=0)
    with pytest.raises(LandingOver):
        world.land_as(NAME, is_over=lambda: batches.is_over(1))
    assert world.steps.of_kind("pull") == []
