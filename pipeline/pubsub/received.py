"""A pull's answer as Arrow columns, decoded from its bytes without a Python object per message."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.pubsub_v1 import PullResponse
from ptars import HandlerPool

from tidemark.pipeline.contract.messages import MESSAGE, MOMENT

ACK_ID = "ack_id"
RECEIVED = MESSAGE.append(pa.field(ACK_ID, pa.string(), nullable=False))
"""A message, and the ack id of this delivery."""

ANSWER: Any = PullResponse.pb()

NEVER = pa.scalar(0, pa.int64()).cast(MOMENT)
"""The publish time of a message without one, as in protobuf."""

NOTHING = pa.Table.from_batches([], RECEIVED)


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
