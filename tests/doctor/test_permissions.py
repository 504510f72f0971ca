"""Each permission that is taken away is named, with what it is on and who needs it."""

import pytest

from tests.doctor.world import World
from tidemark.pipeline.doctor import checks
from tidemark.pipeline.doctor.finding import CheckFinding, Level, examine
from tidemark.pipeline.doctor.identity import RUNNING, Component, permissions_of, role_id

CHECKS = [check for check in checks.CHECKS if check.subject == checks.PERMISSIONS]
ONLY_WARNED = {"monitoring.timeSeries.list", "pubsub.subscriptions.get"}


def wrong(world: World, *components: Component) -> list[CheckFinding]:
    return [one for one in examine(world.setup(*components), CHECKS) if one.level is not Level.OK]


@pytest.fixture(autouse=True)
def _provisioned(world: World) -> None:
    world.provision()


def test_each_permission_that_a_part_that_runs_lacks_is_named(world: World) -> None:
    assert wrong(world) == []
    for permission, parts in permissions_of(RUNNING).items():
        world.take_away(permission)
        findings = wrong(world)
        world.grant_all()
        for finding, resource in zip(findings, world.resources(permission.on), strict=True):
            assert f"lack {permission.name} on " in finding.said
            assert resource in finding.said
            assert finding.level is (Level.WARNING if permission.name in ONLY_WARNED else Level.BROKEN)
            assert all(role_id(part, permission.on) in finding.said for part in parts)


@pytest.mark.parametrize("reading", ["auto", "snapshot"])
def test_what_attach_lacks_is_named_and_consume_on_base_is_wanted_on_purpose_alone(world: World, reading: str) -> None:
    world.pubsub = world.pubsub.model_copy(update={"attach": True, "reading": reading})
    ours = permissions_of([Component.ATTACH], reading)
    world.granted = {}
    for permission in ours:
        for resource in world.resources(permission.on):
            world.granted.setdefault(resource, set()).add(permission.name)
    assert wrong(world, Component.ATTACH) == []
    assert ("pubsub.subscriptions.consume" in world.granted[world.pubsub.base_path]) == (reading == "snapshot")
    for permission in ours:
        (resource,) = world.resources(permission.on)
        world.granted[resource].discard(permission.name)
        (finding,) = wrong(world, Component.ATTACH)
        assert finding.level is Level.BROKEN
        assert f"lack {permission.name} on " in finding.said
        world.granted[resource].add(permission.name)


def test_publishing_is_asked_for_on_the_topic_of_the_signal_where_there_is_one(world: World) -> None:
    world.publish_to = "signal"
    (finding,) = wrong(world)
    path = f"projects/{world.pubsub.project}/topics/signal"
    assert f"lack pubsub.topics.publish on {path} (nothing is granted on it, or it is missing)" in finding.said
    assert (finding.level, "tidemark.tracker.signal" in finding.said) == (Level.BROKEN, True)
    world.granted[path] = {"pubsub.topics.publish"}
    assert wrong(world) == []
