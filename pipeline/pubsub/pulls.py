"""Pulls messages with unary calls that are never cancelled. Pulls are sent in advance, several at the same time if
answers are slow, and continue between batches.

If a client cancels a pull, the server may still answer it, and the messages of this answer stay leased until the ack
deadline (google-cloud-python #8087). So the deadline of a pull is longer than the service waits for messages. An answer
that arrives after its batch becomes part of the next batch. Answers are decoded to Arrow columns, without a Python
object per message.
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
from tidemark.pipeline.settings_sections import ServerSettings

logger = logging.getLogger(__name__)

ACK_ID = "ack_id"
RECEIVED = MESSAGE.append(pa.field(ACK_ID, pa.string(), nullable=False))
"""Schema of received messages: the columns of MESSAGE, and the ack id of the delivery."""

ANSWER: Any = PullResponse.pb()

NEVER = pa.scalar(0, pa.int64()).cast(MOMENT)

NOTHING = pa.Table.from_batches([], RECEIVED)

LEASED_WITHIN_SECONDS = 10.0
LATE, OVER = 0.25, 0.8
"""Limits for the time that a message waits in memory before `take` returns it, as fractions of the ack deadline.

After LATE, `take` extends the message's lease immediately. Without that, the lease might end too early: pulling the
rest of the batch may take a third of the deadline, and it takes another third until the batch's leases are extended for
the first time. After OVER, the message is dropped, because its lease is about to end.
"""

PULL = "/google.pubsub.v1.Subscriber/Pull"

FEWEST_AT_ONCE, PULLS_AT_ONCE = 2, 8
"""Initial and maximum number of pulls in flight. With two, the server works while an answer is decoded. Pub/Sub needs
more, because it answers a pull with few messages even if there are many. An emulator needs only two."""

PULL_AT_MOST = 1000
"""Maximum number of messages requested per pull. This is the service's limit; the official emulator returns at most
100."""

HELD_BYTES = 16 << 20
"""Maximum size in bytes of the received messages that wait for `take`. Beyond it, the answer to a pull does not trigger
another pull."""

SLOW_SECONDS = 0.025
"""If the pulls in flight return nothing for this long, one more pull is sent."""

DEADLINE_SECONDS = 120.0
"""Deadline of a pull in seconds. It must be longer than any server waits for messages; waits of 18 to 90 s have been
observed."""

GIVEN_BACK_SECONDS = 1
"""Remaining lease, in seconds, of messages that are given back. With 0, the snapshots of the official emulator would
omit these messages until they are redelivered, so the watermark would pass them."""

REST_SECONDS = 0.2
"""Pause in seconds after a pull was refused because of a quota, or reached its deadline."""


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
    """Convert protobuf messages to the columns of MESSAGE."""
    answer = ANSWER(received_messages=[{"message": message} for message in messages])
    return received_of(answer.SerializeToString()).drop_columns(ACK_ID)


class Pulls:
    """The pulls in flight of one subscription, and the received messages that wait for `take`.

    When a pull returns messages and more are wanted, its callback sends the next pull, in a gRPC thread. In addition
    to the wanted messages, up to one answer per pull in flight may be waiting. `take` extends the leases of messages
    that have waited long. It drops messages whose leases have nearly ended, and Pub/Sub redelivers them.

    With `keeps`, answers that arrive between batches are kept; otherwise they are given back immediately. `on_call` is
    called, from any thread, for each pull that is sent. Only one thread at a time may call the public methods.
    """

    def __init__(
        self,
        client: SubscriberClient,
        path: str,
        clock: Clock,
        settings: ServerSettings,
        *,
        lease: timedelta,
        keeps: bool,
        on_call: Callable[[], object],
    ) -> None:
        self._transport = client.transport
        self._pull = client.transport.grpc_channel.unary_unary(PULL, request_serializer=PullRequest.serialize)
        self._path = path
        self._metadata = (to_grpc_metadata((("subscription", path),)),)
        self._clock = clock
        self._at_once = PULLS_AT_ONCE if settings.emulator_host is None else FEWEST_AT_ONCE
        self._lease_seconds = lease.total_seconds()
        self._keeps = keeps
        self._on_call = on_call
        self._answers: SimpleQueue[tuple[float, bool, int, Any]] = SimpleQueue()
        self._waiting: deque[tuple[float, pa.Table, int]] = deque()  # arrival time, received messages, their bytes
        self._under_way = 0
        self._lock = RLock()  # guards the next four, which gRPC's threads also change
        self._wanted = 0  # messages, including waiting and requested ones
        self._asked = 0  # messages requested by the pulls in flight
        self._held, self._held_bytes = 0, 0  # waiting messages and their bytes
        self._taker = get_ident()
        self._level = FEWEST_AT_ONCE  # pulls that should be in flight
        self._rests_until = 0.0
        self._is_open = False
        self._began = 0.0
        self._refused: Exception | None = None  # a quota was used up, and nothing has arrived since
        self._failed: Exception | None = None  # raised when the messages received before are taken

    def take(self, at_most: int, seconds: float) -> tuple[pa.Table, int]:
        """Return up to `at_most` messages of one answer, and their size in bytes. Returns no messages if none arrive
        within `seconds`.

        After a pull has failed, calls still return the messages received before. The first call that finds none left
        raises the pull's error, such as GoogleAPICallError. After a refusal because of a quota, a call raises only if
        no message arrives within `seconds`. Reaching the deadline of a pull is not an error.
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
            self._level = FEWEST_AT_ONCE
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
        """Stop sending pulls, because a batch has ended. Pulls in flight continue. Without `keeps`, their messages and
        all messages that were not taken are given back."""
        self._failed = None
        with self._lock:
            self._wanted = 0
        if not self._keeps:
            self.close()

    def go_ahead(self, at_most: int) -> None:
        """Pull up to `at_most` messages in advance, until the next `pause`. Does nothing without `keeps`."""
        if self._keeps and at_most > 0:
            self._open()
            self._send(at_most)

    def close(self) -> None:
        """Give back the messages that were not taken, and the messages that pulls in flight still return. A later
        `take` starts to pull again.

        If a message cannot be given back, it is redelivered when its lease ends.
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
        """Collect the answers that have arrived, and return True if there are any. Wait up to `block_seconds` for the
        first. Drop messages that waited too long."""
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
        """Send pulls until `_level` pulls are in flight, or until all wanted messages are requested. Sends no pull
        while a failure is waiting to be raised by `take`."""
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
        """Return the number of messages to request now, and record them as requested. The caller must hold the lock."""
        asks = max(0, min(PULL_AT_MOST, self._wanted - self._asked - self._held))
        self._asked += asks
        return asks

    def _ask(self, asks: int) -> None:
        self._on_call()
        request = PullRequest(subscription=self._path, max_messages=asks)
        call = self._pull.future(request, timeout=DEADLINE_SECONDS, metadata=self._metadata)
        call.add_done_callback(partial(self._done, asks))

    def _done(self, asks: int, call: Any) -> None:
        """Handle the answer to a pull, in a gRPC thread. Sends the next pull, so that it need not wait until the
        messages are taken."""
        size = 0
        try:
            content = call.result()
            answer, size = received_of(content), len(content)
        except grpc.RpcError as error:
            answer = api.from_grpc_error(error)
        except Exception as error:  # such as a channel that was closed; `take` raises it
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
            came_at_once = get_ident() == self._taker  # the call had ended before `_ask` added this callback
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
        """Make the leases of messages end `seconds` from now. Does not wait for the answers."""
        with suppress(ValueError):  # the channel was closed
            for start in range(0, len(ack_ids), IDS_PER_CALL):
                request = ModifyAckDeadlineRequest(
                    subscription=self._path, ack_ids=ack_ids[start : start + IDS_PER_CALL], ack_deadline_seconds=seconds
                )
                call = self._transport.modify_ack_deadline.future(
                    request, timeout=LEASED_WITHIN_SECONDS, metadata=self._metadata
                )
                call.add_done_callback(lambda _: None)  # gRPC cancels a call without a reference
