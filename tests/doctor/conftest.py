"""A world in which everything is there and granted."""

from collections.abc import Iterator

import pytest

from tests.doctor.world import World, served_world


@pytest.fixture
def world() -> Iterator[World]:
    with served_world() as world:
        world.grant_all()
        yield world
