"""Landing under a name in a bucket: what decides between twins is the service's precondition, not a file system."""

from pathlib import Path

import pytest

from tests.ingest.test_named_landing import NAME, PiecesWorld, publish
from tidemark.pipeline.lake.landings import FOLDER, MANIFEST, NamedLanding
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

AFTER = "run/000000002-0000"


@pytest.fixture
def world(lake_apart: LakeSettings, tmp_path: Path) -> PiecesWorld:
    return PiecesWorld(tmp_path, lake_apart)


def names_in(world: PiecesWorld) -> set[str]:
    return set(world.stored().names(FOLDER))


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
