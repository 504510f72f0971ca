"""Pub/Sub as a single-threaded state machine, with faults that depend only on a seed.

Calls get the time as an argument: the model reads no clock and never sleeps. It does not use gRPC. A message is a
plain protobuf of `google.pubsub.v1`, stored once for all subscriptions of its topic.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from google.pubsub_v1 import types

from tidemark.local.emulator.catalogue import Catalogue, State
from tidemark.local.emulator.faults import FEW, Faults
from tidemark.local.emulator.refusals import AlreadyExists, Invalid, Refused
from tidemark.local.emulator.unacknowledged import Delivered
from tidemark.pipeline.clock import duration_us, from_us, iso, to_us

SNAPSHOT_LIFETIME = timedelta(days=7)
"""A snapshot expires this long after its oldest unacknowledged message was published, as Google documents."""

SNAPSHOT_AT_LEAST = timedelta(hours=1)
"""Minimum lifetime of a new snapshot. A snapshot that would expire sooner is refused, as Google documents."""

READINGS_KEPT = 16
"""Number of earlier expiry times kept per subscription. The fault `stale_reading` gives a new snapshot one of them."""


class PubSubModel(Catalogue):
    """Topics, subscriptions and snapshots, in memory. `at` is the time of a call, and must never go back."""

    def __init__(
        self,
        *,
        rng: random.Random,
        faults: Faults = Faults(),  # noqa: B008 frozen
        first_id: int = 1,
    ) -> None:
        super().__init__(rng, faults)
        self._next_number = first_id

    # Messages

    def publish(self, topic: str, messages: Sequence[Any], at: datetime) -> list[str]:
        """Publish messages to every subscription of the topic, and return their ids in order.

        Set each message's `message_id` and `publish_time`, and keep the object, which the caller must not change
        later. Publish times never go back. If a message does not pass a subscription's filter, it counts as
        acknowledged on this subscription. Raises NotFound.
        """
        self._before()
        added = self.schemas.attributes(self._topic(topic).schema_settings)
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
            if added:
                message.attributes.update(added)
        delay_us = duration_us(self.faults.visible_after)
        for state in self._subscriptions.values():
            if state.config.topic != topic:
                continue
            passing = state.passing(zip(numbers, messages, strict=True))
            if not delay_us:
                state.outstanding.add(passing)
                continue
            for number, message in passing.items():
                visible_us = max(to_us(at), publish_us + self._rng.randint(0, delay_us))
                state.outstanding.add_unseen(number, message, visible_us)
        for snapshot, held in self._snapshots.values():
            if snapshot.topic == topic:
                held.update(zip(numbers, messages, strict=True))
        self._after()
        return ids

    def pull(
        self, subscription: str, max_messages: int, at: datetime, *, max_bytes: int | None = None, goes_on: bool = False
    ) -> list[Delivered]:
        """Return the next messages, leased for the ack deadline. If a message is not acknowledged before its lease
        ends, it is redelivered with the same id and publish time. Raises NotFound.

        With `max_bytes`, the message that brings the total to this size is the last one. `goes_on` is true if a waiting
        call tries again. Such a retry has none of the faults per call, except that an answer with messages may be lost.
        """
        if not goes_on:
            self._before()
        state = self._state_at(subscription, at)
        until_us = to_us(at + state.ack_deadline)
        faults = self.faults
        if not goes_on and self._happens(faults.small_answer):
            max_messages = min(max_messages, self._rng.randint(1, FEW))
        delivered = state.outstanding.take(
            max_messages, max_bytes, until_us, faults.shuffled, faults.duplicate_delivery
        )
        if delivered or not goes_on:
            self._after()
        return delivered

    def answers_empty(self) -> bool:
        """Decide at random whether the fault `empty_answer` happens. If it does, a pull must be answered immediately,
        without messages."""
        return self._happens(self.faults.empty_answer)

    def delay(self) -> timedelta:
        """Draw at random how long a gRPC call takes under the fault `answered_after`."""
        longest = self.faults.answered_after
        return longest * self._rng.uniform(1 / 3, 1) if longest else longest

    def acknowledge(self, subscription: str, ack_ids: Sequence[str], at: datetime) -> None:
        """Acknowledge messages, even if their leases have ended. Ids of acknowledged messages are ignored.

        Raises NotFound. Raises Invalid, and acknowledges nothing, if an id is malformed or of another subscription.
        """
        self._before()
        state = self._state_at(subscription, at)
        ids = _parsed(ack_ids, state)
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
                within_us = duration_us(state.ack_deadline)
                state.outstanding.undo_later(number, message, now_us + self._rng.randint(0, within_us))
        state.outstanding.oldest()  # drops acknowledged numbers, so that an unread subscription does not grow
        self._after(self.faults.acknowledgement_answer_lost)

    def modify_ack_deadline(self, subscription: str, ack_ids: Sequence[str], seconds: int, at: datetime) -> None:
        """Lease messages for `seconds` from `at`. With 0 seconds, they can be redelivered immediately. The call has no
        effect on messages whose leases have ended. Raises the errors of `acknowledge`."""
        self._before()
        state = self._state_at(subscription, at)
        ids = _parsed(ack_ids, state)
        state.outstanding.extend(ids, to_us(at) + seconds * 1_000_000, to_us(at))
        self._after()

    def next_change(self, subscription: str) -> datetime | None:
        """Return the time of a subscription's next planned change, such as the end of a lease. Until then, only another
        call can make a message ready. Return None if no change is planned."""
        next_us = self._state(subscription).outstanding.next_us()
        return None if next_us is None else from_us(next_us)

    def oldest_unacked(self, subscription: str, at: datetime) -> datetime | None:
        """Return the publish time of the oldest visible unacknowledged message, or None. No faults apply."""
        state = self._state_at(subscription, at)
        return self._oldest(state)

    def unacknowledged(self, subscription: str) -> Iterable[Any]:
        """Return all unacknowledged messages, including those not visible yet. No faults apply."""
        return self._state(subscription).outstanding.messages.values()

    # Snapshots

    def create_snapshot(
        self, name: str, subscription: str, at: datetime, labels: Mapping[str, str] | None = None
    ) -> Any:
        """Take a snapshot. It expires seven days after the publish time of the oldest unacknowledged message or,
        without one, seven days after `at`.

        Raises AlreadyExists, NotFound, and Refused if the snapshot would expire within an hour. The faults
        `stale_reading` and `reading_unavailable` apply.
        """
        self._before()
        state = self._state_at(subscription, at)
        self._expire_snapshots(at)
        if name in self._snapshots:
            raise AlreadyExists(f"snapshot {name} exists already")
        if self._happens(self.faults.reading_unavailable):
            raise Refused(f"no snapshot of {subscription} can be taken now: a simulated fault; try again")
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
        snapshot = types.Snapshot.pb()(name=name, topic=state.config.topic, labels=labels)
        snapshot.expire_time.FromDatetime(expire_time)
        self._snapshots[name] = (snapshot, dict(state.outstanding.messages))
        self._after()
        return snapshot

    def list_snapshots(self, at: datetime) -> list[Any]:
        """Return all snapshots that have not expired."""
        self._before()
        self._expire_snapshots(at)
        return [snapshot for snapshot, _ in self._snapshots.values()]

    def get_snapshot(self, name: str, at: datetime) -> Any:
        """Return a snapshot. Raises NotFound if it does not exist or has expired."""
        self._before()
        return self._snapshot(name, at)[0]

    def update_snapshot(self, changed: Any, at: datetime) -> None:
        """Replace the labels and the expiry time of a snapshot. Raises NotFound."""
        self._before()
        _, held = self._snapshot(changed.name, at)
        self._snapshots[changed.name] = (changed, held)
        self._after()

    def delete_snapshot(self, name: str, at: datetime) -> None:
        """Delete a snapshot. Raises NotFound."""
        self._before()
        self._snapshot(name, at)
        del self._snapshots[name]
        self._after()

    def seek(self, subscription: str, to: datetime | str, at: datetime) -> None:
        """Seek to a time, or to a snapshot by name. Raises NotFound, and Refused for a snapshot of another topic.

        - Seek to a time: messages published earlier become acknowledged. Messages published then or later become
          unacknowledged, if they are retained.
        - Seek to a snapshot: its unacknowledged messages and all messages published since become unacknowledged.
          All others become acknowledged.

        A message that was unacknowledged before and after the seek keeps its lease.
        """
        self._before()
        state = self._state_at(subscription, at)
        if isinstance(to, str):
            snapshot, wanted = self._snapshot(to, at)
            if snapshot.topic != state.config.topic:
                raise Refused(f"snapshot {to} is of {snapshot.topic}, but {subscription} is of {state.config.topic}")
            void = [number for number in state.outstanding.messages if number not in wanted]
        else:
            to_time_us = to_us(to)
            wanted = {n: message for n, message in state.retained.items() if _publish_us(message) >= to_time_us}
            void = [n for n, message in state.outstanding.messages.items() if _publish_us(message) < to_time_us]
        for number in void:
            self._forget(state, number)
        state.outstanding.restore(state.passing(wanted.items()))
        self._after()

    def _oldest(self, state: State) -> datetime | None:
        number = state.outstanding.oldest()
        return None if number is None else from_us(_publish_us(state.outstanding.messages[number]))

    def _state_at(self, subscription: str, at: datetime) -> State:
        """Bring a subscription up to the time `at`, and return it: leases end, acknowledgements canceled by a fault are
        undone, and messages past their retention are dropped. Raises NotFound."""
        state = self._state(subscription)
        state.outstanding.pass_time(to_us(at))
        kept_since_us = to_us(at - state.retention)
        while True:
            number = state.outstanding.oldest()
            if number is None or _publish_us(state.outstanding.messages[number]) >= kept_since_us:
                break
            state.outstanding.forget(number)
        while state.retained:
            number, message = next(iter(state.retained.items()))
            if _publish_us(message) >= kept_since_us:
                break
            del state.retained[number]
        return state

    def _forget(self, state: State, number: int) -> Any | None:
        """Acknowledge a message and return it; None if it was acknowledged already."""
        message = state.outstanding.forget(number)
        if message is not None and state.config.retain_acked_messages:
            state.retained[number] = message
        return message


def _parsed(ack_ids: Sequence[str], state: State) -> list[tuple[int, int]]:
    """Parse each ack id to `(delivery, message number)`. Raises Invalid."""
    parsed = []
    for ack_id in ack_ids:
        try:
            tag, delivery, number = ack_id.split(".")
            parsed.append((int(delivery), int(number)))
        except ValueError:
            raise Invalid(f"{ack_id!r} is not an acknowledgement id of {state.config.name}") from None
        if tag != state.tag:
            raise Invalid(f"{ack_id!r} is an acknowledgement id of a subscription other than {state.config.name}")
    return parsed


def _publish_us(message: Any) -> int:
    stamp = message.publish_time
    return int(stamp.seconds * 1_000_000 + stamp.nanos // 1000)
