"""Unary pulls that are never cancelled. They are sent in advance, several at once if answers are slow, and continue
between batches.

If a client cancels a pull, the server may still answer it. The messages of this answer then stay leased until the ack
deadline (google-cloud-python #8087). So a pull's deadline is longer than the service waits for messages, and an answer
that arrives after its batch is part of the next batch. Answers become Arrow columns, without a Python object per
message.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from queue import Empty, SimpleQueue
from threading import RLock, get_ident
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
from google.api_core import exceptions as api
from google.api_core.gapic_v1.routing_header import to_grpc_metadata
from google.pubsub_v1 import ModifyAckDeadlineRequest, PullRequest, PullResponse, SubscriberClient
from ptars import HandlerPool

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.messages import MESSAGE, MOMENT
from tidemark.pipeline.pubsub.leases import IDS_PER_CALL

logger = logging.getLogger(__name__)

ACK_ID = "ack_id"
RECEIVED = MESSAGE.append(pa.field(ACK_ID, pa.string(), nullable=False))
"""Schema of received messages: the columns of MESSAGE, and the ack id of this delivery."""

ANSWER: Any = PullResponse.pb()

NEVER = pa.scalar(0, pa.int64()).cast(MOMENT)
"""Stands for a missing publish time: the epoch, as in protobuf."""

NOTHING = pa.Table.from_batches([], RECEIVED)

LEASED_WITHIN_SECONDS = 10.0
LATE, OVER = 0.25, 0.8
"""Shares of a lease's duration. A batch is pulled within a third of a lease, and its leases are first extended after
another third. So a message that waited longer than LATE gets its lease extended when it is taken. A message that waited
longer than OVER is dropped, because it may be redelivered."""

PULL = "/google.pubsub.v1.Subscriber/Pull"
"""The gRPC method for a pull. Its answer is read as bytes."""

PULL_AT_MOST = 1000
"""Maximum number of messages requested per pull: the service's limit. The official emulator answers with at most
100."""

HELD_BYTES = 16 << 20
"""A pull that returned messages sends the next pull only if fewer bytes of messages than this wait to be taken."""

SLOW_SECONDS = 0.025
"""An additional pull is sent if the pulls in flight have returned nothing for this long."""

DEADLINE_SECONDS = 120.0
"""The deadline of a pull: longer than any server waits for messages. Waits of 18 to 90 s have been observed."""

GIVEN_BACK_SECONDS = 1
"""Remaining lease in seconds of messages that are given back. With 0, the official emulator's snapshots would omit
these messages until they are redelivered, and the watermark would pass them."""

REST_SECONDS = 0.2
"""Pause after a pull was refused for lack of quota, or reached a deadline."""


@cache
def _handler() -> Any:
    return HandlerPool([ANSWER.DESCRIPTOR.file]).get_for_message(ANSWER.DESCRIPTOR)


def received_of(answer: bytes) -> pa.Table:
    """Decode a PullResponse to the columns of RECEIVED."""
    (received,) = _handler().list_to_record_batch([answer]).columns
    each = pc.list_flatten(received)
    message, ordering_key = each.field("message"), each.field("message").field("ordering_key")
    columns = [
        message.field("message_id"),
        pc.fill_null(message.field("publish_time").cast(MOMENT, safe=False), NEVER),
        pc.if_else(pc.equal(ordering_key, ""), None, ordering_key),
        message.field("attributes").cast(RECEIVED.field("attributes").type),
        message.field("data"),
        each.field(ACK_ID),
    ]
    return pa.Table.from_arrays(columns, schema=RECEIVED)


def table_of(messages: Iterable[Any]) -> pa.Table:
    """Convert plain protobuf messages to the columns of MESSAGE."""
    answer = ANSWER(received_messages=[{"message": message} for message in messages])
    return received_of(answer.SerializeToString()).drop_columns(ACK_ID)


class Pulls:
    """One subscription's pulls in flight, and the received messages that wait for `take`.

    A pull that returned messages sends the next pull, in gRPC's thread, while more messages are wanted. The number of
    waiting messages is at most the number wanted, plus one answer per pull in flight. If messages wait long before they
    are taken, their leases are extended; if their leases are nearly over, they are dropped and redelivered.

    With `keeps`, answers that arrive during a pause are kept; otherwise they are given back at once. `on_call` is
    called, from any thread, when a pull is sent. Assumption: only one thread at a time calls the public methods.
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
        self._waiting: deque[tuple[float, pa.Table, int]] = deque()  # arrival time, received messages, their bytes
        self._under_way = 0
        self._lock = RLock()  # guards the next four, which gRPC's threads also change
        self._wanted = 0  # messages, waiting and requested ones included
        self._asked = 0  # messages requested by the pulls in flight
        self._held, self._held_bytes = 0, 0  # waiting messages and their bytes
        self._taker = get_ident()
        self._level = 1  # pulls that should be in flight
        self._rests_until = 0.0
        self._is_open = False
        self._began = 0.0
        self._refused: Exception | None = None  # for lack of quota, and nothing arrived since
        self._failed: Exception | None = None  # raised once the messages received before are taken

    def take(self, at_most: int, seconds: float) -> tuple[pa.Table, int]:
        """Return up to `at_most` messages of one answer, and their size in bytes. Returns no messages if none arrive
        within `seconds`.

        Raises GoogleAPICallError if a pull failed, but only after all messages received before are taken. A pull that
        reaches its own deadline does not count as failed. A pull that was refused for lack of quota raises only if no
        message arrived.
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
        """Send no further pulls. Pulls in flight continue."""
        self._failed = None
        with self._lock:
            self._wanted = 0
        if not self._keeps:
            self.close()

    def go_ahead(self, at_most: int) -> None:
        """Pull up to `at_most` messages in advance, until the next `pause`. Does nothing if `keeps` is false."""
        if self._keeps and at_most > 0:
            self._open()
            self._send(at_most)

    def close(self) -> None:
        """Give back messages that were not taken, and messages that pulls in flight will still return. `take` opens the
        instance again.

        If giving back fails, the messages are redelivered when their leases end.
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
        """Collect the answers that have arrived, and wait up to `block_seconds` for the first. Drop messages that
        waited too long."""
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
        """Return an answer, or an empty table if the answer is an error. The error is stored, unless it arrived during
        a pause."""
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
        """Send pulls until `_level` pulls are in flight, for messages that are wanted but not yet requested.

        Sends no pull while a failure waits to be raised.
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
        """Return the number of messages to request now, and count these messages as requested. The caller holds the
        lock."""
        asks = max(0, min(PULL_AT_MOST, self._wanted - self._asked - self._held))
        self._asked += asks
        return asks

    def _ask(self, asks: int) -> None:
        self._on_call()
        request = PullRequest(subscription=self._path, max_messages=asks)
        call = self._pull.future(request, timeout=DEADLINE_SECONDS, metadata=self._metadata)
        call.add_done_callback(partial(self._done, asks))

    def _done(self, asks: int, call: Any) -> None:
        """Handle a pull's answer in one of gRPC's threads. The next pull is sent from here, so that it does not wait
        until the messages are taken."""
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
            came_at_once = get_ident() == self._taker  # it ended before its callback was added: `_send` still runs
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
        """Request that messages stay leased for `seconds` from now. Does not wait for the answers."""
        with suppress(ValueError):  # the channel was closed
            for start in range(0, len(ack_ids), IDS_PER_CALL):
                request = ModifyAckDeadlineRequest(
                    subscription=self._path, ack_ids=ack_ids[start : start + IDS_PER_CALL], ack_deadline_seconds=seconds
                )
                call = self._transport.modify_ack_deadline.future(
                    request, timeout=LEASED_WITHIN_SECONDS, metadata=self._metadata
                )
                call.add_done_callback(lambda _: None)  # gRPC cancels a call without a reference
