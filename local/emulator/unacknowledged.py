"""One subscription's unacknowledged messages: their leases, and the order of their delivery.

A message is known by its number, which rises with publication. The cost of every operation follows what it handles,
not what is waiting: numbers of acknowledged messages stay in the queues and are dropped when they surface.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple


class Delivered(NamedTuple):
    """A delivered message. A tuple, because a pull makes a thousand of them."""

    ack_id: str
    message: Any


class Lease(NamedTuple):
    """Keeps messages from being delivered again until a moment, in microseconds since the epoch."""

    delivery: int
    until_us: int


class Unacknowledged:
    """The unacknowledged messages of one subscription. Assumption: moments never go back from call to call."""

    def __init__(self, tag: str, rng: random.Random) -> None:
        self.messages: dict[int, Any] = {}  # those not visible yet included
        self._tag = tag
        self._rng = rng
        self._order: list[int] = []  # a heap of visible messages, acknowledged ones included
        self._ready: deque[int] = deque()  # the next to deliver, acknowledged ones included
        self._pool: list[int] = []  # the same without order, while deliveries are shuffled
        self._leases: dict[int, Lease] = {}
        self._plans: list[tuple[int, int, Callable[[], None]]] = []  # a heap: when, the plan's number, what happens
        self._planned = 0
        self._undone_once: set[int] = set()
        self._duplicates: set[int] = set()
        self._deliveries = 0

    def add(self, messages: Mapping[int, Any]) -> None:
        """Add newly published messages, visible at once. Their numbers rise, and are larger than all before."""
        self.messages.update(messages)
        self._order.extend(messages)  # still a heap: nothing in it is larger
        self._ready.extend(messages)

    def add_unseen(self, number: int, message: Any, visible_us: int) -> None:
        """Add a newly published message that becomes visible later."""
        self.messages[number] = message
        self._plan(visible_us, partial(self._show, number))

    def restore(self, messages: Mapping[int, Any]) -> None:
        """Make acknowledged messages unacknowledged again; they are delivered before the others."""
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
        """Plan to undo the message's acknowledgement at that moment, unless one of it was undone before."""
        if number not in self._undone_once:
            self._undone_once.add(number)
            self._plan(at_us, partial(self.restore, {number: message}))

    def pass_time(self, now_us: int) -> None:
        """End leases, make messages visible and undo acknowledgements that are due."""
        while self._plans and self._plans[0][0] <= now_us:
            _, _, happen = heapq.heappop(self._plans)
            happen()

    def next_us(self) -> int | None:
        """Return the moment at which `pass_time` next has something to do, if nothing else is called before."""
        return self._plans[0][0] if self._plans else None

    def oldest(self) -> int | None:
        """The smallest number that is visible and unacknowledged."""
        while self._order and self._order[0] not in self.messages:
            heapq.heappop(self._order)
        return self._order[0] if self._order else None

    def take(
        self, at_most: int, max_bytes: int | None, until_us: int, shuffled: bool, duplicates: float
    ) -> list[Delivered]:
        """Deliver and lease the next messages: at most so many, and none after the one that reaches `max_bytes`."""
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
        """Lease deliveries `(delivery, number)` until another moment, except those whose lease has ended."""
        by_delivery: dict[int, list[int]] = {}
        for delivery, number in ids:
            if self.is_leased(delivery, number, now_us):
                by_delivery.setdefault(delivery, []).append(number)
        for delivery, numbers in by_delivery.items():
            if until_us > now_us:
                self._lease(numbers, Lease(delivery, until_us))
                continue
            for number in reversed(numbers):
                del self._leases[number]
                self._ready.appendleft(number)

    def is_leased(self, delivery: int, number: int, now_us: int) -> bool:
        """Tell whether this delivery's lease is the message's newest, and has not ended."""
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
