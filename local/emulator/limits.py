"""Checks requests against the limits that Google documents under "Quotas and limits". Each check raises Invalid, which
names the limit."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.local.emulator.refusals import Invalid

MESSAGES_PER_PUBLISH = 1000
BYTES_PER_PUBLISH = 10_000_000
ATTRIBUTES = 100
KEY_BYTES = 256
VALUE_BYTES = 1024
ORDERING_KEY_BYTES = 1024
BYTES_OF_IDS = 524_288
"""Maximum total size of the ack ids in one request."""

ACK_DEADLINE_SECONDS = 10
"""A subscription's default ack deadline."""

RETENTION = timedelta(days=7)
"""A subscription's default retention of unacknowledged messages."""

RETENTION_AT_LEAST = timedelta(minutes=10)
RETENTION_AT_MOST = timedelta(days=31)

EXPIRES_UNUSED_AFTER = timedelta(days=31)
"""Google's default for the expiration of an unused subscription. The emulator returns it, but no subscription
expires."""

ID = re.compile(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")


def resource(kind: str, name: str) -> str:
    """Check a resource name such as `projects/PROJECT/topics/ID`, and return it."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != "projects" or not parts[1] or parts[2] != kind:
        raise Invalid(f"{name!r} is not a name such as projects/PROJECT/{kind}/ID")
    if not ID.fullmatch(parts[3]) or parts[3].lower().startswith("goog"):
        raise Invalid(
            f"{name!r}: the id {parts[3]!r} must have 3 to 255 characters (letters, digits and "
            "-_.~+%), and begin with a letter, but not with goog"
        )
    return name


def project(name: str) -> str:
    """Check a project's name, `projects/PROJECT`, and return the prefix of its resource names."""
    if not re.fullmatch(r"projects/[^/]+", name):
        raise Invalid(f"{name!r} is not a name such as projects/PROJECT")
    return f"{name}/"


def publishable(request: Any) -> None:
    """Check a publish request."""
    messages = request.messages
    if not messages:
        raise Invalid("there is no message to publish")
    if len(messages) > MESSAGES_PER_PUBLISH:
        raise Invalid(f"{len(messages)} messages in one request; the maximum is {MESSAGES_PER_PUBLISH}")
    if (size := request.ByteSize()) > BYTES_PER_PUBLISH:
        raise Invalid(f"the request has {size} bytes; the maximum is {BYTES_PER_PUBLISH}")
    for message in messages:
        attributes = message.attributes
        if not attributes and not message.data:
            raise Invalid("a message must have data or at least one attribute")
        # A message no larger than the longest key cannot have a key or value that is too long.
        if attributes and ("" in attributes or message.ByteSize() > KEY_BYTES):
            _attributes(attributes)
        if message.ordering_key and len(message.ordering_key.encode()) > ORDERING_KEY_BYTES:
            raise Invalid(f"an ordering key is too long; the maximum is {ORDERING_KEY_BYTES} bytes")


def _attributes(attributes: Any) -> None:
    if len(attributes) > ATTRIBUTES:
        raise Invalid(f"{len(attributes)} attributes on a message; the maximum is {ATTRIBUTES}")
    for key, value in attributes.items():
        if not key or len(key.encode()) > KEY_BYTES:
            raise Invalid(f"an attribute's key must have 1 to {KEY_BYTES} bytes, not {len(key.encode())}")
        if len(value.encode()) > VALUE_BYTES:
            raise Invalid(f"the value of the attribute {key!r} is too long; the maximum is {VALUE_BYTES} bytes")


def ack_ids(ids: Sequence[str]) -> None:
    """Check the ack ids of a request."""
    if not ids:
        raise Invalid("there is no acknowledgement id")
    if sum(map(len, ids)) > BYTES_OF_IDS:
        raise Invalid(f"the acknowledgement ids of one request are too long; the maximum is {BYTES_OF_IDS} bytes")


def durations(subscription: Any) -> None:
    """Check a subscription's durations, and set missing ones to their defaults."""
    deadline = subscription.ack_deadline_seconds = subscription.ack_deadline_seconds or ACK_DEADLINE_SECONDS
    if not 10 <= deadline <= 600:
        raise Invalid(f"ack_deadline_seconds = {deadline}: it must be 10 to 600")
    retention = subscription.message_retention_duration
    if not subscription.HasField("message_retention_duration"):
        retention.FromTimedelta(RETENTION)
    try:
        kept = retention.ToTimedelta()
    except (OverflowError, ValueError) as error:
        raise Invalid(f"message_retention_duration is not a duration: {error}") from error
    if not RETENTION_AT_LEAST <= kept <= RETENTION_AT_MOST:
        raise Invalid(f"message_retention_duration = {kept}: it must be 10 minutes to 31 days")
    if not subscription.HasField("expiration_policy"):
        subscription.expiration_policy.ttl.FromTimedelta(EXPIRES_UNUSED_AFTER)


def moment(name: str, timestamp: Any) -> datetime:
    """Convert the timestamp of a request to a UTC time. Raises Invalid."""
    try:
        found: datetime = timestamp.ToDatetime(UTC)
    except ValueError as error:
        raise Invalid(f"{name} is not a time: {error}") from error
    return found
