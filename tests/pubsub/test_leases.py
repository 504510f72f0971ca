"""Leases are kept until they are let go, whatever becomes of the calls that extend them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.auth.exceptions import RefreshError

from tests.fixtures_emulator import unique_pubsub
from tests.pubsub.builders import Altered, subscription_of
from tidemark.pipeline.pubsub import leases as module
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.leases import LEASE, Leases

pytestmark = pytest.mark.timeout(60)
SECONDS = 0.03
"""How long a lease lasts here."""


class Extending:
    """Takes down what is asked for; `then` is called each time, in the keeper's thread."""

    def __init__(self, then: Callable[[int], object] = lambda _: None) -> None:
        self.calls: list[list[str]] = []
        self._then = then
        self._called = threading.Condition()

    def __call__(self, ack_ids: Sequence[str]) -> None:
        with self._called:
            self.calls.append(list(ack_ids))
            self._called.notify_all()
        self._then(len(self.calls))

    def wait_for(self, calls: int) -> None:
        """Wait until there were so many calls."""
        with self._called:
            assert self._called.wait_for(lambda: len(self.calls) >= calls, 30)


@pytest.fixture
def ends() -> Iterator[threading.Event]:
    """What a call that hangs waits for: the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_an_extension_that_hangs_stops_no_other_call(own_pubsub: str, ends: threading.Event) -> None:
    with subscriber_client(own_pubsub) as client:
        settings, hangs = unique_pubsub(own_pubsub), threading.Event()

        def modify(**_: Any) -> None:
            hangs.set()
            ends.wait()

        altered = Altered(client, modify_ack_deadline=modify, acknowledge=lambda **_: None)
        subscription = subscription_of(altered, settings, lease=LEASE / 600)
        subscription.hold(["a", "b", "c"])
        assert hangs.wait(30)
        assert subscription.acknowledge(["a"]).count == 1
        subscription.give_back(["b"])
        subscription.close()
        assert not ends.is_set()


@pytest.mark.parametrize(
    "error",
    [api.ServiceUnavailable("away"), RefreshError("the key was revoked"), ValueError("a closed channel")],  # type: ignore[no-untyped-call]
)
def test_an_extension_that_fails_does_not_end_the_keeper(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail_twice(call: int) -> None:
        if call <= 2:
            raise error

    extend = Extending(fail_twice)
    with closing(Leases("fails", SECONDS, extend)) as leases:
        leases.hold(["a"])
        extend.wait_for(4)
    assert extend.calls[:4] == [["a"]] * 4
    assert [str(error) in record.getMessage() for record in caplog.records] == [True] * 2


def test_what_was_let_go_is_not_extended_and_what_came_later_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within one round of extensions: `b` and `c` are let go, and `d` comes, while the first call is under way."""
    monkeypatch.setattr(module, "IDS_PER_CALL", 2)
    holder: list[Leases] = []

    def change(call: int) -> None:
        if call == 1:
            holder[0].let_go(["b", "c"])
            holder[0].hold(["d"])

    extend = Extending(change)
    with closing(Leases("changes", SECONDS, extend)) as leases:
        holder.append(leases)
        leases.hold(["a", "b", "c"])
        extend.wait_for(3)
    assert extend.calls[:3] == [["a", "b"], ["a", "d"], ["a", "d"]]
