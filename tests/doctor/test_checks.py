"""Checks side by side: each has its say, whatever the others do."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import google.auth
import pytest
from google.auth import impersonated_credentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from google.cloud.monitoring_v3.types import ListTimeSeriesResponse

from tests.clock import ManualClock
from tests.pubsub.builders import raising
from tests.pubsub.test_backlog import OfTheMachine
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor import checks, permissions, rest
from tidemark.pipeline.doctor.checks import CHECKS, diagnose
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, Statement, examine
from tidemark.pipeline.doctor.identity import LEASES, METRICS, RUNNING, On, permissions_of
from tidemark.pipeline.doctor.permissions import check_quotas
from tidemark.pipeline.doctor.rest import Silent, check_credentials
from tidemark.pipeline.errors import LakeUnreachable
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings

SETUP = Setup(Settings(), SystemClock())


def check_that_is_well(_: Setup) -> Iterator[Statement]:
    yield Level.OK, "well"


def check_that_raises(_: Setup) -> Iterator[Statement]:
    yield Level.WARNING, "before"
    raise LakeUnreachable("no lake")


def check_that_has_a_defect(_: Setup) -> Iterator[Statement]:
    yield Level.OK, "begun"
    raise ZeroDivisionError("by nought")


@pytest.fixture
def never() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def test_a_check_that_fails_keeps_what_it_found_and_hides_no_other() -> None:
    checks = [Check("a", check_that_raises), Check("b", check_that_has_a_defect), Check("c", check_that_is_well)]
    assert examine(SETUP, checks) == [
        CheckFinding("a", Level.WARNING, "before"),
        CheckFinding("a", Level.BROKEN, "no lake"),
        CheckFinding("b", Level.OK, "begun"),
        CheckFinding("b", Level.WARNING, "could not be checked (ZeroDivisionError: by nought)"),
        CheckFinding("c", Level.OK, "well"),
    ]


def test_a_check_that_hangs_is_overdue_and_the_others_are_told(never: Event) -> None:
    def check_that_hangs(_: Setup) -> Iterator[Statement]:
        yield Level.OK, "begun"
        never.wait()

    checks = [Check("slow", check_that_hangs, seconds=0.2, overdue=Level.WARNING), Check("c", check_that_is_well)]
    first, *others = examine(SETUP, checks)
    assert (first.level, first.said) == (Level.WARNING, "that hangs: no answer within 0.2 s")
    assert [one.said for one in others] == ["begun", "well"]


ACCOUNT = "tidemark@project.iam.gserviceaccount.com"


def on_the_service(**pubsub: Any) -> Setup:
    return Setup(Settings(pubsub=PubSubSettings(**pubsub), lake=LakeSettings(uri="gs://bucket")), SystemClock())


def of_credentials(setup: Setup) -> list[CheckFinding]:
    return examine(setup, [Check("credentials", check_credentials)])


def test_without_credentials_that_is_said_once_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", raising(DefaultCredentialsError("there are none")))
    monkeypatch.setattr(rest, "ask", raising(Silent("no answer")))
    quick = [check for check in CHECKS if check.subject != checks.DAGSTER]
    found = diagnose(on_the_service(), quick)
    (broken,) = [one for one in found if one.level is Level.BROKEN and one.subject != checks.SPARK]
    assert "no usable credentials for Google Cloud: there are none; run `gcloud auth" in broken.said
    assert {one.subject for one in found} <= {checks.CREDENTIALS, checks.SPARK}


def test_what_slow_credentials_take_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = replace(on_the_service(), clock=ManualClock(SystemClock().now()))

    def check_that_is_slow(_: Setup) -> Iterator[Statement]:
        SystemClock().sleep(0.3)
        yield Level.OK, "well"

    monkeypatch.setattr(rest, "check_credentials", lambda setup: setup.clock.sleep(5) or ())
    assert diagnose(setup, [Check("c", check_that_is_slow)], within=4.0) == []


def test_an_account_that_may_not_be_impersonated_is_named_with_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", lambda **_: (OfTheMachine(), "project"))
    assert [one.level for one in of_credentials(on_the_service())] == [Level.OK]
    setup = on_the_service(impersonate=ACCOUNT)
    monkeypatch.setattr(impersonated_credentials.Credentials, "refresh", raising(RefreshError("you may not")))
    own, account = of_credentials(setup)
    assert (own.level, account.level) == (Level.OK, Level.BROKEN)
    assert f"may not act as {ACCOUNT} (pubsub.impersonate): you may not; grant" in account.said
    assert "roles/iam.serviceAccountTokenCreator" in account.said
    with monkeypatch.context() as unreachable:
        unreachable.setattr(impersonated_credentials.Credentials, "refresh", raising(TransportError("no way")))
        assert "(no way): check the network" in of_credentials(setup)[1].said
    monkeypatch.setattr(impersonated_credentials.Credentials, "refresh", lambda *_: None)
    assert of_credentials(setup)[1].said == f"requests to Pub/Sub and Cloud Monitoring are made as {ACCOUNT}"


def test_metrics_are_needed_only_where_backlogs_are_read_from_them_and_options_are_never() -> None:
    granted = {permission.name for permission in permissions_of(RUNNING)}
    for reading, level in (("auto", Level.WARNING), ("monitoring", Level.BROKEN)):
        setup = on_the_service(reading=reading)
        for on, lacked, expected in ((On.PROJECT, METRICS, level), (On.SUBSCRIPTION, LEASES, Level.WARNING)):
            found = permissions._compared(setup, on, "it", granted - {lacked.permission.name})
            assert [(one, f"lack {lacked.permission.name}" in said) for one, said in found] == [(expected, True)]


class OfMonitoring:
    """A client whose one answer says of a quota that it was exceeded, or not."""

    def __init__(self, *, exceeded: bool) -> None:
        series = {
            "metric": {"type": permissions.EXCEEDED, "labels": {"quota_metric": "pubsub.googleapis.com/administrator"}},
            "points": [{"value": {"bool_value": False}}, {"value": {"bool_value": exceeded}}],
        }
        self.pages = [ListTimeSeriesResponse({"time_series": [series]})]
        self.asked: dict[str, Any] = {}

    def list_time_series(self, request: dict[str, Any], **_: object) -> "OfMonitoring":
        self.asked = request
        return self


@pytest.mark.parametrize(("exceeded", "level"), [(True, Level.WARNING), (False, Level.OK)])
def test_a_quota_exceeded_within_a_day_is_named(monkeypatch: pytest.MonkeyPatch, exceeded: bool, level: Level) -> None:
    client = OfMonitoring(exceeded=exceeded)
    monkeypatch.setattr(permissions, "monitoring_client", lambda *_: nullcontext(client))
    (finding,) = examine(on_the_service(project="my-project"), [Check("quotas", check_quotas)])
    assert finding.level is level
    assert ("pubsub.googleapis.com/administrator was exceeded" in finding.said) is exceeded
    assert "quotas?project=my-project&service=pubsub.googleapis.com" in finding.said
    interval = client.asked["interval"]
    assert interval["end_time"] - interval["start_time"] == timedelta(days=1)
    assert 'resource.labels.project_id = "my-project"' in client.asked["filter"]
