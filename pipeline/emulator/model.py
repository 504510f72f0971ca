"""Pub/Sub as a state machine on one thread, with faults that one seed replays.

Time is an argument of every call: the model asks no clock and never sleeps. It knows nothing of gRPC, and of a
message only that it is a plain protobuf `google.pubsub.v1.PubsubMessage`, which it keeps once, whole, for all the
subscriptions of its topic.
"""

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from pipeline.clock import duration_us, from_us, iso, to_us
from pipeline.emulator.catalogue import Catalogue, State
from pipeline.emulator.faults import Faults
from pipeline.emulator.refusals import AlreadyExists, Invalid, NotFound, Refused
from pipeline.emulator.snapshots import Journal, Snapshot
from pipeline.emulator.unacknowledged import Delivered

SNAPSHOT_LIFETIME = timedelta(days=7)
"""A snapshot expires this long after the publish time of its oldest message. Source: `Snapshot.expire_time`."""

SNAPSHOT_AT_LEAST = timedelta(hours=1)
"""A snapshot that would live for less is refused. Source: `CreateSnapshot`."""

READINGS_KEPT = 16
"""A stale reading is one of so many before."""


class PubSubModel(Catalogue):
    """Topics, subscriptions and snapshots; in memory alone.

    Assumption: the moments (`at`, aware) that it is told never go back. `faults` may be replaced at any time, and
    every call may raise `Transient` errors if they say so.
    """

    def __init__(self, *, rng: random.Random, faults: Faults = Faults()) -> None:  # noqa: B008 frozen
        super().__init__(rng, faults)
        self._next_number = 1

    # Messages

    def publish(self, topic: str, messages: Sequence[Any], at: datetime) -> list[str]:
        """Give the messages to every subscription of the topic, and return their ids, in order.

        Sets `message_id` and `publish_time` of each, and keeps the objects themselves: the caller must not change
        them any more. Publish times never go back. Raises NotFound.
        """
        self._before()
        self._topic(topic)
        publish_us = max(to_us(at), self._newest_publish_us)
        self._newest_publish_us = publish_us
        if self.faults.whole_seconds:
            publish_us -= publish_us % 1_000_000
        seconds, nanos = publish_us // 1_000_000, publish_us % 1_000_000 * 1000
        numbers = range(self._next_number, self._next_number + len(messages))
        self._next_number = numbers.stop
        ids = [str(number) for number in numbers]
        for message_id, message in zip(ids, messages, strict=True):
            message.message_id = message_id
            stamp = message.publish_time
            stamp.seconds = seconds
            stamp.nanos = nanos
        delay_us = duration_us(self.faults.visible_after)
        for state in self._subscriptions.values():
            if state.told.topic != topic:
                continue
            if not delay_us:
                state.outstanding.add(numbers, messages)
                continue
            for number, message in zip(numbers, messages, strict=True):
                visible_us = max(to_us(at), publish_us + self._rng.randint(0, delay_us))
                state.outstanding.add_unseen(number, message, visible_us)
        for snapshot, journal in self._snapshots.values():
            if snapshot.topic == topic:
                journal.published(numbers, messages)
        self._after()
        return ids

    def pull(
        self,
        subscription: str,
        max_messages: int,
        at: datetime,
        *,
        max_bytes: int | None = None,
        goes_on: bool = False,
    ) -> list[Delivered]:
        """What is next, leased for the ack deadline; none where nothing is due. Raises NotFound.

        With `max_bytes`, the message that reaches it is the last. A message comes again, with the same id and
        publish time, unless it is acknowledged before its lease ends. `goes_on` says that this is still the call that
        found nothing before: it is one call to the faults, however often it looks.
        """
        if not goes_on:
            self._before()
        state = self._state(subscription)
        self._pass_time(state, at)
        until_us = to_us(at + state.told.ack_deadline)
        faults = self.faults
        delivered = state.outstanding.take(
            max_messages, max_bytes, until_us, faults.shuffled, faults.duplicate_delivery
        )
        if delivered or not goes_on:
            self._after()
        return delivered

    def acknowledge(self, subscription: str, ack_ids: Sequence[str], at: datetime) -> None:
        """These need not come again. An id whose lease has ended still counts; one that counts no more is ignored.

        Raises NotFound, and Invalid for an id that is none of this subscription's; then none is acknowledged.
        """
        self._before()
        state = self._state(subscription)
        ids = _parsed(ack_ids, state)
        self._pass_time(state, at)
        faults, now_us, chance = self.faults, to_us(at), self._rng.random
        for delivery, number in ids:
            if faults.acknowledgement_lost and chance() < faults.acknowledgement_lost:
                continue
            if (
                faults.late_acknowledgement_lost
                and not state.outstanding.is_leased(delivery, number, now_us)
                and chance() < faults.late_acknowledgement_lost
            ):
                continue
            message = self._forget(state, number)
            if message is not None and faults.redelivered and chance() < faults.redelivered:
                within_us = duration_us(state.told.ack_deadline)
                state.outstanding.undo_later(number, message, now_us + self._rng.randint(0, within_us))
        state.outstanding.oldest()  # drops what is void, so that a subscription nobody reads does not grow
        self._after(self.faults.acknowledgement_answer_lost)

    def modify_ack_deadline(self, subscription: str, ack_ids: Sequence[str], seconds: int, at: datetime) -> None:
        """The messages are leased for so long from now on; with 0 they come again at once.

        Without effect on an id whose lease has ended. Raises NotFound, and Invalid as `acknowledge` does.
        """
        self._before()
        state = self._state(subscription)
        ids = _parsed(ack_ids, state)
        self._pass_time(state, at)
        state.outstanding.extend(ids, to_us(at) + seconds * 1_000_000, to_us(at))
        self._after()

    def next_change(self, subscription: str) -> datetime | None:
        """Before this moment a pull that finds nothing finds nothing again, unless somebody calls; None: ever."""
        next_us = self._state(subscription).outstanding.next_us()
        return None if next_us is None else from_us(next_us)

    def oldest_unacked(self, subscription: str, at: datetime) -> datetime | None:
        """The publish time of the oldest message that is visible and not acknowledged: the truth, without faults."""
        state = self._state(subscription)
        self._pass_time(state, at)
        return self._oldest(state)

    def unacknowledged(self, subscription: str) -> Iterable[Any]:
        """All messages that are not acknowledged, also those that are not visible yet; without faults."""
        return self._state(subscription).outstanding.messages.values()

    # Snapshots

    def create_snapshot(self, name: str, subscription: str, at: datetime, config: Any = None) -> Snapshot:
        """A snapshot that expires seven days after the oldest unacknowledged publish time, or after now.

        Raises AlreadyExists, NotFound, and Refused where it would live for less than an hour. This is the reading
        that the faults `stale_reading` and `reading_unavailable` spoil.
        """
        self._before()
        state = self._state(subscription)
        self._pass_time(state, at)
        self._expire_snapshots(at)
        if name in self._snapshots:
            raise AlreadyExists(f"snapshot {name} exists already")
        if self._happens(self.faults.reading_unavailable):
            raise Refused(f"no snapshot of {subscription} can be taken now (a fault)")
        expire_time = (self._oldest(state) or at) + SNAPSHOT_LIFETIME
        if state.readings and self._happens(self.faults.stale_reading):
            expire_time = self._rng.choice(state.readings)
        elif self.faults.stale_reading:
            state.readings = [*state.readings, expire_time][-READINGS_KEPT:]
        if expire_time - at < SNAPSHOT_AT_LEAST:
            raise Refused(
                f"a snapshot of {subscription} would expire at {iso(expire_time)}, in less than an hour: its oldest "
                "unacknowledged message is too old"
            )
        snapshot = Snapshot(name, state.told.topic, expire_time, config)
        self._snapshots[name] = (snapshot, Journal(state.outstanding, self._next_number))
        self._after()
        return snapshot

    def get_snapshot(self, name: str, at: datetime) -> Snapshot:
        """Raises NotFound, also once it has expired."""
        self._before()
        return self._snapshot(name, at)[0]

    def list_snapshots(self, at: datetime) -> list[Snapshot]:
        """All that have not expired."""
        self._before()
        self._expire_snapshots(at)
        return [snapshot for snapshot, _ in self._snapshots.values()]

    def update_snapshot(self, changed: Snapshot, at: datetime) -> None:
        """Replace what is told of the snapshot of that name. Raises NotFound."""
        self._before()
        _, journal = self._snapshot(changed.name, at)
        self._snapshots[changed.name] = (changed, journal)
        self._after()

    def delete_snapshot(self, name: str, at: datetime) -> None:
        """Raises NotFound."""
        self._before()
        self._snapshot(name, at)
        del self._snapshots[name]
        self._after()

    def seek(self, subscription: str, to: datetime | Snapshot, at: datetime) -> None:
        """To a time: what was published before is acknowledged, and what was published at it or later is not, as
        far as it is still there: acknowledged messages are kept where `retain_acked_messages` says so. To a
        snapshot: what it held and what was published since is unacknowledged, all else acknowledged.

        What is leased comes when its lease ends. Raises NotFound, and Refused for a snapshot of another topic.
        """
        self._before()
        state = self._state(subscription)
        self._pass_time(state, at)
        if isinstance(to, Snapshot):
            snapshot, journal = self._snapshot(to.name, at)
            if snapshot.topic != state.told.topic:
                raise Refused(f"snapshot {to.name} is of {snapshot.topic}, {subscription} is of {state.told.topic}")
            wanted = dict(journal.messages())
            void = [number for number in state.outstanding.messages if number not in wanted]
        else:
            to_time_us = to_us(to)
            wanted = {n: message for n, message in state.retained.items() if _publish_us(message) >= to_time_us}
            void = [n for n, message in state.outstanding.messages.items() if _publish_us(message) < to_time_us]
        for number in void:
            self._forget(state, number)
        self._restore(state, wanted)
        self._after()

    # Below here is nothing that a caller sees

    def _snapshot(self, name: str, at: datetime) -> tuple[Snapshot, Journal]:
        self._expire_snapshots(at)
        try:
            return self._snapshots[name]
        except KeyError:
            raise NotFound(f"there is no snapshot {name}") from None

    def _expire_snapshots(self, at: datetime) -> None:
        for name in [name for name, (snapshot, _) in self._snapshots.items() if snapshot.expire_time <= at]:
            del self._snapshots[name]

    def _oldest(self, state: State) -> datetime | None:
        number = state.outstanding.oldest()
        return None if number is None else from_us(_publish_us(state.outstanding.messages[number]))

    def _pass_time(self, state: State, at: datetime) -> None:
        """What has happened on a subscription until now: ended leases, undone acknowledgements, dropped messages."""
        undone = state.outstanding.pass_time(to_us(at))
        if undone:
            self._restore(state, undone)
        kept_since_us = to_us(at - state.told.retention)
        while True:
            number = state.outstanding.oldest()
            if number is None or _publish_us(state.outstanding.messages[number]) >= kept_since_us:
                break
            self._drop(state, number)
        while state.retained:
            number, message = next(iter(state.retained.items()))
            if _publish_us(message) >= kept_since_us:
                break
            del state.retained[number]

    def _forget(self, state: State, number: int) -> Any | None:
        """Acknowledge one message; what it was, None if it was acknowledged already."""
        message = self._drop(state, number)
        if message is not None and state.told.retain_acked_messages:
            state.retained[number] = message
        return message

    def _drop(self, state: State, number: int) -> Any | None:
        message = state.outstanding.forget(number)
        if message is not None:
            for _, journal in self._snapshots.values():
                journal.forgotten(state.outstanding, number, message)
        return message

    def _restore(self, state: State, messages: dict[int, Any]) -> None:
        restored = {number: message for number, message in messages.items() if number not in state.outstanding.messages}
        for number in restored:
            for _, journal in self._snapshots.values():
                journal.restored(state.outstanding, number)
        state.outstanding.restore(restored)


def _parsed(ack_ids: Sequence[str], state: State) -> list[tuple[int, int]]:
    """`(delivery, number)` of each, or Invalid."""
    parsed = []
    for ack_id in ack_ids:
        try:
            tag, delivery, number = ack_id.split(".")
            parsed.append((int(delivery), int(number)))
        except ValueError:
            raise Invalid(f"{ack_id!r} is not an acknowledgement id of {state.told.name}") from None
        if tag != state.tag:
            raise Invalid(f"{ack_id!r} is an acknowledgement id of another subscription than {state.told.name}")
    return parsed


def _publish_us(message: Any) -> int:
    stamp = message.publish_time
    return int(stamp.seconds * 1_000_000 + stamp.nanos // 1000)
