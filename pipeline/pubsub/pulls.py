"""Unary pulls that run to their end: sent ahead, several at once where answers are slow, and kept between batches.

A pull that its client gives up may still be answered, and the messages of that answer stay leased until the ack
deadline (google-cloud-python #8087). So a pull's deadline is longer than the service waits, and an answer that
comes after its batch belongs to the next one.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock, get_ident
from typing import Any

import grpc
import pyarrow as pa
from google.api_core import exceptions as api
from google.api_core.gapic_v1.routing_header import to_grpc_metadata
from google.pubsub_v1 import ModifyAckDeadlineRequest, PullRequest, SubscriberClient

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.pubsub.leases import IDS_PER_CALL
from tidemark.pipeline.pubsub.received import ACK_ID, NOTHING, received_of

logger = logging.getLogger(__name__)

LEASED_WITHIN_SECONDS = 10.0
LATE, OVER = 0.25, 0.8
"""Shares of a lease. A batch is pulled within a third, and its leases are extended first after another third: what
waited for longer than LATE is extended before. What waited for longer than OVER may be delivered again by then."""

PULL = "/google.pubsub.v1.Subscriber/Pull"
"""The method, whose answer is taken as bytes."""

PULL_AT_MOST = 1000
"""Messages asked for by one pull: the service's own limit. The official emulator answers with at most 100."""

HELD_BYTES = 16 << 20
"""A pull sends another by itself while fewer bytes than this wait to be taken."""

SLOW_SECONDS = 0.025
"""Another pull is sent when those under way have brought nothing for so long."""

DEADLINE_SECONDS = 120.0
"""The deadline of a pull: longer than any server waits for messages. Waits of 18 to 90 s are known."""

GIVEN_BACK_SECONDS = 1
"""Messages that are given back stay leased for so long. With 0 the official emulator's snapshots do not count them
until they come again, and the watermark would pass them."""

REST_SECONDS = 0.2
"""No pull is sent for so long after one was refused for want of quota, or ran into a deadline."""


class Pulls:
    """The pulls of one subscription that are under way, and what they brought that is not taken yet.

    A pull that brought something sends the next one from gRPC's thread, while more is wanted. What waits is bounded by
    what was wanted and by as many answers as pulls may be under way. Its leases are extended when it is taken late;
    what waits until they are nearly over comes again. Unless it `keeps`, an answer that comes during a pause is given
    back at once. `on_call` is called, from any thread, when a pull is sent. Assumption: one thread at a time
    takes, goes ahead, pauses and closes.
    """

    def __init__(
        self,
        client: SubscriberClient,
        path: str,
        clock: Clock,
        *,
        at_once: int,
        lease: timedelta,
        keeps: bool,
        on_call: Callable[[], object],
    ) -> None:
        self._transport = client.transport
        self._pull = client.transport.grpc_channel.unary_unary(PULL, request_serializer=PullRequest.serialize)
        self._path = path
        self._metadata = (to_grpc_metadata((("subscription", path),)),)
        self._clock = clock
        self._at_once = at_once
        self._lease_seconds = lease.total_seconds()
        self._keeps = keeps
        self._on_call = on_call
        self._answers: SimpleQueue[tuple[float, bool, int, Any]] = SimpleQueue()
        self._waiting: deque[tuple[float, pa.Table, int]] = deque()  # since when, received messages, their bytes
        self._under_way = 0
        self._lock = RLock()  # of the next four, which gRPC's threads change as well
        self._wanted = 0  # messages, those that wait and are asked for included
        self._asked = 0  # messages, by the pulls under way
        self._held, self._held_bytes = 0, 0  # what waits
        self._taker = get_ident()
        self._level = 1  # pulls that should be under way
        self._rests_until = 0.0
        self._is_open = False
        self._began = 0.0
        self._refused: Exception | None = None  # for want of quota, and nothing came since
        self._failed: Exception | None = None  # raised when what came before it is taken

    def take(self, at_most: int, seconds: float) -> tuple[pa.Table, int]:
        """Received messages of one answer, at most so many, and their bytes; none if nothing comes within `seconds`.

        Raises GoogleAPICallError if a pull failed, unless by its own deadline, when what came before is taken; for want
        of quota only if nothing came.
        """
        self._open()
        until = self._began + seconds
        self._sort_in(block_seconds=0.0)
        self._send(at_most)
        while not self._waiting and self._failed is None and (left := until - self._clock.monotonic()) > 0:
            if not self._sort_in(block_seconds=min(left, SLOW_SECONDS)):
                self._level = min(self._level + 1, self._at_once)
            self._send(at_most)
        if not self._waiting:
            self._level = 1
            error = self._failed or self._refused
            self._failed = self._refused = None
            if error is not None:
                raise error
            return NOTHING, 0
        since, received, size = self._waiting.popleft()
        if self._clock.monotonic() - since > self._lease_seconds * LATE:
            self.lease(received[ACK_ID].to_pylist(), int(self._lease_seconds))
        if len(received) > at_most:
            rest = received.slice(at_most)
            received, left_size = received.slice(0, at_most), size * len(rest) // len(received)
            self._waiting.appendleft((since, rest, left_size))
            size -= left_size
        self._taken(len(received), size)
        self._send(at_most - len(received))
        return received, size

    def pause(self) -> None:
        """Send no further pulls; those under way go on."""
        self._failed = None
        with self._lock:
            self._wanted = 0
        if not self._keeps:
            self.close()

    def go_ahead(self, at_most: int) -> None:
        """Pull so many messages at most before they are taken, until the next `pause`; nothing unless it `keeps`."""
        if self._keeps and at_most > 0:
            self._open()
            self._send(at_most)

    def close(self) -> None:
        """Give back what was not taken, and whatever the pulls under way still bring. Taking opens it again.

        Where giving back fails, the messages come again when their leases end.
        """
        self._is_open = False
        self._began = self._clock.monotonic()
        self._sort_in(block_seconds=0.0)
        while self._waiting:
            self.lease(self._waiting[0][1][ACK_ID].to_pylist(), GIVEN_BACK_SECONDS)
            self._drop()

    def _open(self) -> None:
        self._is_open = True
        self._began = self._clock.monotonic()
        self._taker = get_ident()

    def _drop(self) -> None:
        _, received, size = self._waiting.popleft()
        self._taken(len(received), size)

    def _taken(self, messages: int, size: int) -> None:
        with self._lock:
            self._held -= messages
            self._held_bytes -= size

    def _sort_in(self, *, block_seconds: float) -> bool:
        """Take the answers that have come, waiting so long for a first one; drop what waited too long."""
        found = False
        while True:
            try:
                since, is_last, size, answer = self._answers.get(not found and block_seconds > 0, block_seconds)
            except Empty:
                break
            found = True
            self._under_way -= is_last
            answer = self._checked(since, answer)
            if len(answer):
                self._waiting.append((since, answer, size))
        while self._waiting and self._clock.monotonic() - self._waiting[0][0] > self._lease_seconds * OVER:
            self._drop()
        return found

    def _checked(self, since: float, answer: Any) -> pa.Table:
        """Return an answer, or an empty one for an error, which is remembered unless it came during a pause."""
        if not isinstance(answer, Exception):
            self._refused = None
            return answer
        if since < self._began:
            return NOTHING
        if not isinstance(answer, api.TooManyRequests | api.DeadlineExceeded):
            self._failed = answer
            return NOTHING
        if isinstance(answer, api.TooManyRequests):
            self._refused = answer
        self._rests_until = self._clock.monotonic() + REST_SECONDS
        return NOTHING

    def _send(self, wanted: int) -> None:
        """Have as many pulls under way as the level says, for messages that are wanted and not asked for yet.

        None is sent while a failure waits to be raised.
        """
        if self._failed is not None:
            return
        with self._lock:
            self._wanted = wanted
        while self._under_way < self._level and self._clock.monotonic() >= self._rests_until:
            with self._lock:
                asks = self._may_ask()
            if not asks:
                return
            self._under_way += 1
            self._ask(asks)

    def _may_ask(self) -> int:
        """For how many messages a pull is sent now; they count as asked for. The lock is held."""
        asks = max(0, min(PULL_AT_MOST, self._wanted - self._asked - self._held))
        self._asked += asks
        return asks

    def _ask(self, asks: int) -> None:
        self._on_call()
        request = PullRequest(subscription=self._path, max_messages=asks)
        call = self._pull.future(request, timeout=DEADLINE_SECONDS, metadata=self._metadata)
        call.add_done_callback(partial(self._done, asks))

    def _done(self, asks: int, call: Any) -> None:
        """Called in one of gRPC's threads: the next pull is sent from here, so that it does not wait for the taker."""
        size = 0
        try:
            content = call.result()
            answer, size = received_of(content), len(content)
        except grpc.RpcError as error:
            answer = api.from_grpc_error(error)
        except Exception as error:  # such as a channel that was closed; raised where it is taken
            answer = error
        if not self._is_open and not isinstance(answer, Exception):
            self.lease(answer[ACK_ID].to_pylist(), GIVEN_BACK_SECONDS)
            answer, size = NOTHING, 0
        found = 0 if isinstance(answer, Exception) else len(answer)
        now = self._clock.monotonic()
        with self._lock:
            self._asked -= asks
            self._held += found
            self._held_bytes += size
            goes_on = found and self._held_bytes < HELD_BYTES and now >= self._rests_until
            came_at_once = get_ident() == self._taker  # before this was its callback: `_send` is still at it
            next_asks = self._may_ask() if goes_on and not came_at_once else 0
        sends_next = goes_on and came_at_once
        if sends_next:
            self._under_way -= 1
        self._answers.put((now, not next_asks and not sends_next, size, answer))
        if next_asks:
            try:
                self._ask(next_asks)
            except Exception as error:  # such as a channel that was closed
                with self._lock:
                    self._asked -= next_asks
                self._answers.put((now, True, 0, error))

    def lease(self, ack_ids: Sequence[str], seconds: int) -> None:
        """Ask that messages are leased for so long from now. The answers are not waited for."""
        with suppress(ValueError):  # the channel was closed
            for start in range(0, len(ack_ids), IDS_PER_CALL):
                request = ModifyAckDeadlineRequest(
                    subscription=self._path,
                    ack_ids=ack_ids[start : start + IDS_PER_CALL],
                    ack_deadline_seconds=seconds,
                )
                call = self._transport.modify_ack_deadline.future(
                    request, timeout=LEASED_WITHIN_SECONDS, metadata=self._metadata
                )
                call.add_done_callback(lambda _: None)  # gRPC cancels a call without a reference
