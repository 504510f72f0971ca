"""Extends the leases of pulled messages until the messages are acknowledged or given back."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Lock, Thread

from tidemark.pipeline.figures import HOW, Sums

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=60)
"""Ack deadline of the subscriptions that tidemark creates. A pulled message is leased for this time: Pub/Sub does not
redeliver it. A third of this time is enough to pull a batch. The deadline is also short enough that the messages of a
killed process are redelivered soon."""

IDS_PER_CALL = 1000
"""Maximum number of ack ids per request, as in Google's clients. Reason: the service refuses a request of more than
512 KiB, and its ids have grown from 160 to more than 210 bytes (googleapis/google-cloud-go#20391)."""

SHARE = 3
"""Number of times that a lease is extended within the ack deadline."""

FIRST_FEW = {HOW: lambda one, other: (*one, *other)[:5]}


@dataclass(frozen=True, slots=True)
class Acknowledged(Sums):
    """The result of acknowledging messages: the numbers of successes and failures, and the first five errors. A message
    whose acknowledgement failed is redelivered, although its data is durable already."""

    count: int = 0
    failed: int = 0
    problems: tuple[str, ...] = field(default=(), metadata=FIRST_FEW)


class Leases:
    """Extends the leases of one subscription's messages, in a thread that runs while there are leases to extend.
    Thread-safe.

    `extend` is called with up to IDS_PER_CALL ack ids, and must extend each lease to `seconds` from now. An error of
    `extend` is logged, and the next extension is tried at its usual time. At worst the messages are delivered twice.
    """

    def __init__(self, path: str, seconds: float, extend: Callable[[Sequence[str]], object]) -> None:
        self._path = path
        self._every = seconds / SHARE
        self._extend = extend
        self._lock = Lock()
        self._held: dict[str, None] = {}
        self._is_done = Event()

    def hold(self, ack_ids: Iterable[str]) -> None:
        """Keep extending the leases of these messages until `let_go` or `close`."""
        with self._lock:
            had, _ = bool(self._held), self._held.update(dict.fromkeys(ack_ids))
            if had or not self._held:
                return
            self._is_done = done = Event()
        Thread(target=self._keep, args=(done,), name=f"leases of {self._path}", daemon=True).start()

    def let_go(self, ack_ids: Iterable[str]) -> None:
        """Stop extending the leases of these messages. Does not block."""
        with self._lock:
            for ack_id in ack_ids:
                self._held.pop(ack_id, None)
            if not self._held:
                self._is_done.set()

    def close(self) -> None:
        """Stop extending all leases."""
        self.let_go([*self._held])

    def _keep(self, done: Event) -> None:
        while not done.wait(self._every):
            with self._lock:
                held = list(self._held)
            for first in range(0, len(held), IDS_PER_CALL):
                still = [one for one in held[first : first + IDS_PER_CALL] if one in self._held]
                if done.is_set():
                    return
                if still:
                    self._extend_some(still)

    def _extend_some(self, ack_ids: Sequence[str]) -> None:
        try:
            self._extend(ack_ids)
        except Exception as error:  # any error: if this thread ended, all leases would be lost
            logger.warning("leases on %s were not extended, and messages may be redelivered: %s", self._path, error)
