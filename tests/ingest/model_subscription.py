"""A subscription of the Pub/Sub model as the ticks know it, with the errors that the real client raises."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from tests.clock import ManualClock
from tests.emulator.builders import expiry
from tests.ingest.judged import messages_of
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import DeadlineExceeded, ModelError, NotFound, Refused, Transient
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import PubSubUnreachable, ReadingUnavailable, SnapshotRefused, SubscriptionMissing
from tidemark.pipeline.pubsub.backlog import LIFETIME, ReadingTimes
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.readings import Reading

SNAPSHOT = "reading"
NO_FAULTS = Faults()


class Outside(Protocol):
    """What a subscription needs of the process that uses it. By default nothing happens, and nobody extends a lease."""

    clock: ManualClock

    def step(self, what: str) -> None:
        """A moment at which others run, time passes, a call fails, or the process dies."""

    def keep(self, extend: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002
        """Have leases extended now and then until the returned function is called, if this process does so."""
        return lambda: None

    def pulled(self) -> None:
        """Messages were delivered to this process."""

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None:
        """These are about to be acknowledged."""

    def refuses_untruly(self) -> bool:
        """Whether a reading that the faults spoil looks like one that was refused for its age."""
        return True


def pubsub_of(budget: int | None) -> PubSubSettings:
    """The settings of a model's subscriptions, with a budget of snapshots."""
    names = {"project": "p", "base_subscription": "base", "tracking_subscription": "tracking"}
    return PubSubSettings(emulator_host="localhost:1").model_copy(update={**names, "snapshot_budget": budget})


class Unasked:
    """A subscription of which nothing is asked but what a subclass has."""

    path = "projects/p/subscriptions/s"

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the subscription was asked to {name}")


class ModelSubscription:
    """A subscription as one process reaches it."""

    def __init__(self, model: PubSubModel, name: str, outside: Outside, pulled: dict[str, Any] | None = None) -> None:
        """`pulled` is shared with the readers whose messages this process acknowledges."""
        self._model = model
        self._name = name
        self._outside = outside
        self._pulled: dict[str, Any] = {} if pulled is None else pulled
        self._held: dict[str, None] = {}
        self._stop: Callable[[], None] | None = None

    @property
    def path(self) -> str:
        return f"projects/p/subscriptions/{self._name}"

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:  # noqa: ARG002
        assert seconds > 0
        self._outside.step(f"pull {self._name}")
        try:
            delivered = self._model.pull(self._name, max_messages, self._outside.clock.now(), max_bytes=max_bytes)
        except DeadlineExceeded:
            delivered = []
        except NotFound as error:
            raise SubscriptionMissing(str(error)) from error
        except Transient as error:
            raise PubSubUnreachable(str(error)) from error
        messages = [each.message for each in delivered]
        self._pulled |= {each.ack_id: each.message for each in delivered}
        self._outside.pulled()
        self._outside.step(f"pulled {self._name}")
        self.hold([each.ack_id for each in delivered])
        return PulledBatch(
            messages_of(messages), [each.ack_id for each in delivered], sum(message.ByteSize() for message in messages)
        )

    def hold(self, ack_ids: Sequence[str]) -> None:
        if self._stop is None and ack_ids:
            self._stop = self._outside.keep(self._extend)
        self._held |= dict.fromkeys(ack_ids)

    def _extend(self) -> None:
        seconds = self._model.get_subscription(self._name).ack_deadline_seconds
        self._model.modify_ack_deadline(self._name, list(self._held), seconds, self._outside.clock.now())

    def _let_go(self, ack_ids: Sequence[str]) -> None:
        for ack_id in ack_ids:
            self._held.pop(ack_id, None)
        if self._stop is not None and not self._held:
            self._stop()
            self._stop = None

    def give_back(self, ack_ids: Sequence[str], seconds: int = GIVEN_BACK_SECONDS) -> None:
        self._let_go(ack_ids)
        with suppress(ModelError):
            self._model.modify_ack_deadline(self._name, ack_ids, seconds, self._outside.clock.now())

    def pause(self) -> None:
        """Nothing: no pull is under way."""

    def close(self) -> None:
        self._let_go(list(self._held))

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        self._let_go(ack_ids)
        self._outside.step(f"acknowledge {self._name}")
        self._outside.acknowledging(self._name, [self._pulled[ack_id] for ack_id in ack_ids])
        try:
            self._model.acknowledge(self._name, ack_ids, self._outside.clock.now())
            outcome = Acknowledged(count=len(ack_ids))
        except Transient as error:
            outcome = Acknowledged(failed=len(ack_ids), problems=(str(error),))
        self._outside.step(f"acknowledged {self._name}")
        return outcome


class ModelBacklog:
    """The oldest unacknowledged publish time, by a snapshot's expiry, as `SnapshotBacklog` reads it. The reader may
    have a clock of its own."""

    def __init__(
        self,
        model: PubSubModel,
        name: str,
        outside: Outside,
        clock: Clock | None = None,
        times: ReadingTimes | None = None,
    ) -> None:
        self._model = model
        self._name = name
        self._outside = outside
        self._times = times or ReadingTimes(clock or outside.clock)

    def read(self) -> Reading:
        asked = self._times.ask()
        self._outside.step(f"read {self._name}")
        try:
            snapshot = self._model.create_snapshot(SNAPSHOT, self._name, self._outside.clock.now())
        except Refused as error:
            if self._outside.refuses_untruly():
                raise SnapshotRefused(str(error)) from error
            raise ReadingUnavailable(str(error)) from error
        except NotFound as error:
            raise SubscriptionMissing(str(error)) from error
        except Transient as error:
            raise PubSubUnreachable(str(error)) from error
        finally:
            self._delete()
        self._outside.step(f"has read {self._name}")
        return self._times.reading(asked, expiry(snapshot) - LIFETIME)

    def _delete(self) -> None:
        """At once, and also where the answer was lost, so that one name is enough."""
        faults, self._model.faults = self._model.faults, NO_FAULTS
        with suppress(NotFound):
            self._model.delete_snapshot(SNAPSHOT, self._outside.clock.now())
        self._model.faults = faults
