"""Landing under a name in a bucket: what decides between twins is the service's precondition, not a file system."""

from pathlib import Path

import pytest

from tests.ingest.fakes import Crash
from tests.ingest.test_named_landing import NAME, PiecesWorld, ids, publish
from tidemark.pipeline.ingest import take as taking
from tidemark.pipeline.lake.landings import FOLDER, MANIFEST, LandedBatches, NamedLanding
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

AFTER = "run/000000002-0000"


@pytest.fixture
def world(lake_apart: LakeSettings, tmp_path: Path) -> PiecesWorld:
    return PiecesWorld(tmp_path, lake_apart)


def names_in(world: PiecesWorld) -> set[str]:
    return set(world.stored().names(FOLDER))


def test_a_batch_that_landed_under_a_name_is_served_again_under_it(
    world: PiecesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "FILE_BYTES", 1)  # a piece of what each pull brings
    publish(world, 5)
    world.topic.publish("yesterday")
    first = world.land_as(NAME)
    assert len(first.pieces) == 2
    assert world.base.unacknowledged == []
    publish(world, 2, first=950)
    world.restart()
    again = world.land_as(NAME)
    assert (again.is_served, again.pieces) == (True, first.pieces)
    assert world.steps.taken == []
    assert ids(again, world.stored()) == ["1", "2", "3", "4", "5"]
    assert world.quarantined_ids() == ["6"]
    assert len(ids(world.land_as(AFTER), world.stored())) == 2


def test_one_of_two_twins_wins_and_the_other_acknowledges_nothing_and_leaves_no_object(
    world: PiecesWorld, tmp_path: Path
) -> None:
    publish(world, 3)
    twin = PiecesWorld(tmp_path, world.lake_settings)
    twin.clock, twin.base = world.clock, world.base
    winners: list[NamedLanding] = []

    def twin_first() -> bool:
        if not winners:
            winners.append(twin.land_as(NAME))
            publish(world, 2, first=950)
        return False

    served = world.land_as(NAME, is_over=twin_first)
    assert (served.is_served, served.pieces) == (True, winners[0].pieces)
    assert names_in(world) == {MANIFEST.name(NAME), *winners[0].pieces}
    assert [message.message_id for message in world.base.unacknowledged] == ["4", "5"]


@pytest.mark.parametrize("dies_at", range(2, 15))
def test_a_reader_that_dies_anywhere_loses_nothing(world: PiecesWorld, dies_at: int) -> None:
    publish(world, 5)
    world.topic.publish("yesterday")
    world.steps.dies_at = dies_at
    with pytest.raises(Crash):
        world.land_as(NAME)
    world.restart()
    for name in (NAME, AFTER):
        world.wait(60)
        world.land_as(name)
    assert world.base.unacknowledged == []
    assert set(world.landed_ids()) == {"1", "2", "3", "4", "5"}
    assert set(world.quarantined_ids()) == {"6"}


def test_the_end_of_a_batch_deletes_what_landed_up_to_it(world: PiecesWorld) -> None:
    batches = LandedBatches(world.objects, "run")
    for number in (1, 2):
        publish(world, 1)
        world.land_as(batches.name(number, 0))
    batches.end(2, keep=1)
    assert batches.is_over(2)
    assert Notes(world.stored(), MANIFEST).find(batches.name(1, 0)) is None
    left = Notes(world.stored(), MANIFEST).find(batches.name(2, 0))
    assert left is not None
    assert ids(left, world.stored()) == ["2"]
