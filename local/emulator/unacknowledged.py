"""The unacknowledged messages of one subscription: their leases, and the order of their delivery.

A message is identified by its number, in the order of publication. No operation searches the waiting messages. An
acknowledgement leaves the message's number in the queues, where it is skipped when its turn comes.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple


class Delivered(NamedTuple):
    """A delivered message. It is a tuple for speed, because a pull creates a thousand of them."""

    ack_id: str
    message: Any


class Lease(NamedTuple):
    """The lease of the messages of one delivery. They are not redelivered before `until_us`, in microseconds since the
    epoch."""

    delivery: int
    until_us: int


class Unacknowledged:
    """The unacknowledged messages of one subscription. The times that callers pass must never go back."""

    def __init__(self, tag: str, rng: random.Random) -> None:
        self.messages: dict[int, Any] = {}  # including those not visible yet
        self._tag = tag
        self._rng = rng
        self._order: list[int] = []  # a heap of visible messages, and at most about as many acknowledged ones
        self._ready: deque[int] = deque()  # the next to deliver, including acknowledged ones
        self._pool: list[int] = []  # like `_ready` but unordered, while deliveries are shuffled
        self._leases: dict[int, Lease] = {}
        self._plans: list[tuple[int, int, Callable[[], None]]] = []  # a heap: moment, plan number, action
        self._planned = 0
        self._undone_once: set[int] = set()
        self._duplicates: set[int] = set()
        self._deliveries = 0

    def add(self, messages: Mapping[int, Any]) -> None:
        """Add new messages, which are visible at once. Their numbers must be ascending, and larger than all earlier
        numbers."""
        self.messages.update(messages)
        self._order.extend(messages)  # still a heap: nothing in it is larger
        self._ready.extend(messages)

    def add_unseen(self, number: int, message: Any, visible_us: int) -> None:
        """Add a new message that becomes visible at `visible_us`."""
        self.messages[number] = message
        self._plan(visible_us, partial(self._show, number))

    def restore(self, messages: Mapping[int, Any]) -> None:
        """Make acknowledged messages unacknowledged again. Unless deliveries are shuffled, they are delivered next."""
        for number, message in sorted(messages.items(), reverse=True):
            if number not in self.messages:
                self.messages[number] = message
                heapq.heappush(self._order, number)
                self._ready.appendleft(number)

    def forget(self, number: int) -> Any | None:
        """Acknowledge a message and return it; None if it was acknowledged already."""
        self._leases.pop(number, None)
        return self.messages.pop(number, None)

    def undo_later(self, number: int, message: Any, at_us: int) -> None:
        """Plan to make an acknowledged message unacknowledged again at `at_us`, at most once per message."""
        if number not in self._undone_once:
            self._undone_once.add(number)
            self._plan(at_us, partial(self.restore, {number: message}))

    def pass_time(self, now_us: int) -> None:
        """Apply all planned changes up to `now_us`: end leases, show messages and undo acknowledgements."""
        while self._plans and self._plans[0][0] <= now_us:
            _, _, happen = heapq.heappop(self._plans)
            happen()

    def next_us(self) -> int | None:
        """Return the time of the next planned change; None if nothing is planned."""
        return self._plans[0][0] if self._plans else None

    def oldest(self) -> int | None:
        """Return the number of the oldest visible unacknowledged message; None if there is none."""
        if len(self._order) > 2 * len(self.messages):  # a sorted list is a heap
            self._order = sorted({number for number in self._order if number in self.messages})
        while self._order and self._order[0] not in self.messages:
            heapq.heappop(self._order)
        return self._order[0] if self._order else None

    def take(
        self, at_most: int, max_bytes: int | None, until_us: int, shuffled: bool, duplicates: float
    ) -> list[Delivered]:
        """Deliver and lease the next messages, at most `at_most`. The message that reaches `max_bytes` is the last
        one."""
        taken: dict[int, None] = {}  # in order; a number may wait twice
        size = 0
        messages, leases = self.messages, self._leases
        while len(taken) < at_most and (max_bytes is None or size < max_bytes):
            number = self._next(shuffled)
            if number is None:
                break
            if number not in messages:
                continue
            if number in leases:
                if number not in self._duplicates:
                    continue
                self._duplicates.discard(number)
            taken[number] = None
            if max_bytes is not None:
                size += messages[number].ByteSize()
        if not taken:
            return []
        self._deliveries += 1
        self._lease(list(taken), Lease(self._deliveries, until_us))
        prefix = f"{self._tag}.{self._deliveries}."
        delivered = [Delivered(f"{prefix}{number}", messages[number]) for number in taken]
        if duplicates:
            again = [number for number in taken if self._rng.random() < duplicates]
            self._duplicates.update(again)
            self._ready.extend(again)
        return delivered

    def extend(self, ids: Iterable[tuple[int, int]], until_us: int, now_us: int) -> None:
        """Make the leases of these `(delivery, number)` pairs end at `until_us`. Leases that have ended are ignored."""
        by_delivery: dict[int, list[int]] = {}
        for delivery, number in ids:
            if self.is_leased(delivery, number, now_us):
                by_delivery.setdefault(delivery, []).append(number)
        for delivery, numbers in by_delivery.items():
            if until_us > now_us:
                self._lease(numbers, Lease(delivery, until_us))
                continue
            for number in reversed(numbers):
                if self._leases.pop(number, None) is not None:  # the caller may name a message twice
                    self._ready.appendleft(number)

    def is_leased(self, delivery: int, number: int, now_us: int) -> bool:
        """Return True if the message's newest lease belongs to this delivery and has not ended."""
        lease = self._leases.get(number)
        return lease is not None and lease.delivery == delivery and lease.until_us > now_us

    def _plan(self, at_us: int, happen: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._plans, (at_us, self._planned, happen))

    def _lease(self, numbers: Sequence[int], lease: Lease) -> None:
        self._leases.update(dict.fromkeys(numbers, lease))
        self._plan(lease.until_us, partial(self._end, lease, numbers))

    def _end(self, lease: Lease, numbers: Sequence[int]) -> None:
        for number in reversed(numbers):  # so that they keep their order
            if self._leases.get(number) is lease:
                del self._leases[number]
                self._ready.appendleft(number)

    def _show(self, number: int) -> None:
        heapq.heappush(self._order, number)
        self._ready.append(number)

    def _next(self, shuffled: bool) -> int | None:
        if shuffled:
            self._pool.extend(self._ready)
            self._ready.clear()
        if not self._pool:
            return self._ready.popleft() if self._ready else None
        chosen = self._rng.randrange(len(self._pool))
        self._pool[chosen], self._pool[-1] = self._pool[-1], self._pool[chosen]
        return self._pool.pop()
