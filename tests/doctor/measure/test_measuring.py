"""What is measured, on both emulators and on services that deviate: each deviation is found and named, and nothing is
left behind."""

from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.doctor.measure import deviations
from tests.fixtures_emulator import unique_pubsub
from tests.identity.documented import permissions_of_rpc
from tests.identity.recording import Recorder
from tests.pubsub.builders import Denying
from tests.pubsub.fake_monitoring import metrics_at
from tests.pubsub.fake_monitoring import served as serve_monitoring
from tidemark.local.emulator.faults import LIKE_THE_SERVICE, Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.identity import NEEDS, Component
from tidemark.pipeline.doctor.measure.experiments import measure
from tidemark.pipeline.doctor.measure.facts import Facts, Row, Verdict, follows, rows
from tidemark.pipeline.doctor.measure.traffic import Plan
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.settings import Settings

EXPIRY, ACKNOWLEDGED = range(2)
PASSED, DELAY, REDELIVERY, FILTER, TRANSFORM, AGE, CLOCK = range(-7, 0)
"""The rows, in their order. Some of a snapshot's may be absent, so the others are counted from the end."""


def measured(given: deviations.Service, clock: SystemClock | None = None, plan: Plan = deviations.QUICK) -> Facts:
    return measure(given.pubsub, clock or SystemClock(), plan)


def of_a_service(facts: Facts) -> list[Row]:
    """As if it were Google's."""
    return rows(facts, Settings())


def readings_that_follow(facts: Facts) -> list[str]:
    return [one.value for one in follows(facts, Settings()) if one.key == "reading"]


def test_the_official_emulator_is_exact_and_what_it_ignores_is_not_measured(official_emulator: str) -> None:
    pubsub = unique_pubsub(official_emulator)
    found = rows(measure(pubsub, SystemClock(), deviations.QUICK), Settings(pubsub=pubsub))
    assert found[EXPIRY].found == "exact in 4 readings"
    unknown = {FILTER, TRANSFORM, AGE}
    expected = [Verdict.NOT_MEASURED if number in unknown else Verdict.AS_EXPECTED for number in range(-10, 0)]
    assert [one.verdict for one in found] == expected
    assert all(found[number].found.startswith("not measured here: ") for number in unknown)
    project = f"projects/{pubsub.project}"
    with subscriber_client(official_emulator) as subscriber, publisher_client(official_emulator) as publisher:
        for listing in (publisher.list_topics, subscriber.list_subscriptions, subscriber.list_snapshots):
            assert list(listing(project=project)) == []


def test_a_service_as_the_method_expects_it_is_found_so() -> None:
    with deviations.service(deviations.Transforms, replace(LIKE_THE_SERVICE, answered_after=timedelta(0))) as given:
        facts = measured(given)
    found = of_a_service(facts)
    assert {one.fact: one.found for one in found if one.verdict is Verdict.DIFFERS} == {}
    assert found[TRANSFORM].found == "received 10 of 10: 0 with a payload, 0 changed"
    assert {one.key: one.value for one in follows(facts, Settings())}.keys() == {"slack"}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (deviations.ForgetsTheOldest, {EXPIRY: "later than the message by up to "}),
        (deviations.ShowsAcknowledgementsLate, {ACKNOWLEDGED: "up to 3"}),
        (
            deviations.DeviatesOtherwise,
            {
                EXPIRY: "rounded to a minute, off by up to ",
                FILTER: "received 10 of 10 that pass, and 10 others",
                REDELIVERY: "changed by 5s",
                TRANSFORM: "received 10 of 10: 10 with a payload, 0 changed",
            },
        ),
    ],
)
def test_each_deviation_is_found_and_named(model: type[PubSubModel], expected: dict[int, str]) -> None:
    clock = deviations.Fast() if model is deviations.ShowsAcknowledgementsLate else SystemClock()
    with deviations.service(model, clock=clock) as given:
        facts = measured(given, clock)
    for row, said in expected.items():
        found = of_a_service(facts)[row]
        assert (found.verdict, found.found[: len(said)]) == (Verdict.DIFFERS, said)
        assert bool(found.then) is (row not in (EXPIRY, ACKNOWLEDGED)), (
            "either a setting follows, or what to do is said"
        )
    assert readings_that_follow(facts) == ["monitoring"]


def test_late_visibility_is_found_and_the_slack_is_three_times_it() -> None:
    with deviations.service(faults=Faults(visible_after=timedelta(seconds=1.3))) as given:
        facts = measured(given, plan=replace(deviations.QUICK, rounds=1, messages=20))
    found = of_a_service(facts)
    assert found[DELAY].verdict is Verdict.DIFFERS
    assert found[PASSED].found.startswith("passed in 1 of 1 readings, by up to ")
    assert found[EXPIRY].verdict is Verdict.AS_EXPECTED
    (slack,) = {one.value for one in follows(facts, Settings())}
    assert 3.0 < float(slack.removesuffix("s")) < 30


def test_what_cloud_monitoring_shows_is_compared_with_the_publish_time() -> None:
    clock = deviations.Fast()
    with ExitStack() as stack:
        given = stack.enter_context(deviations.service(clock=clock))
        sampling = deviations.Sampling(given.model, clock, given.pubsub.project)
        address = stack.enter_context(serve_monitoring(sampling))
        stack.enter_context(metrics_at(address))
        facts = measured(given, clock)
    assert of_a_service(facts)[AGE].verdict is Verdict.AS_EXPECTED
    assert timedelta(seconds=100) <= facts.monitoring.visible_after < timedelta(seconds=200)
    assert readings_that_follow(facts) == []


@pytest.mark.parametrize(
    ("method", "permission"),
    [
        ("DeleteTopic", "pubsub.topics.delete"),
        ("Publish", "pubsub.topics.publish"),
        ("CreateSubscription", "pubsub.topics.attachSubscription"),
        ("Pull", "pubsub.subscriptions.consume"),
        ("Acknowledge", "pubsub.subscriptions.consume"),
        ("ModifyAckDeadline", "pubsub.subscriptions.consume"),
        ("CreateSnapshot", "pubsub.snapshots.create"),
    ],
)
def test_a_permission_that_is_refused_is_named_and_nothing_is_left(method: str, permission: str) -> None:
    with deviations.service(interceptors=[Denying({method})]) as given, pytest.raises(PermissionMissing) as refused:
        measured(given)
    assert permission in str(refused.value)


def test_it_calls_what_the_table_of_permissions_says() -> None:
    recorder = Recorder()
    with ExitStack() as stack:
        given = stack.enter_context(deviations.service(interceptors=[recorder]))
        sampling = deviations.Sampling(given.model, SystemClock(), given.pubsub.project)
        address = stack.enter_context(serve_monitoring(sampling, [recorder, Denying({"ListTimeSeries"})]))
        stack.enter_context(metrics_at(address))
        measured(given)
        called = {one.name for method in recorder.methods for one in permissions_of_rpc(method)}
    assert called == {need.permission.name for need in NEEDS[Component.MEASURE]}


@pytest.mark.parametrize("step", ["creating", "delays"])
def test_ctrl_c_at_any_step_leaves_nothing(step: str) -> None:
    def interrupt(said: str) -> None:
        if said.startswith(step):
            raise KeyboardInterrupt

    with deviations.service() as given, pytest.raises(KeyboardInterrupt):
        measure(given.pubsub, SystemClock(), deviations.QUICK, interrupt)


@pytest.mark.parametrize("method", ["CreateSubscription", "CreateSnapshot"])
def test_what_was_made_without_an_answer_is_removed(method: str) -> None:
    with deviations.service(interceptors=[Denying({method}, after=True)]) as given, pytest.raises(PubSubError):
        measured(given)
