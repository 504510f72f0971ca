"""CloudEvents in both modes of their Pub/Sub protocol binding: an event's context becomes attributes `ce-…`.

Source: "Google Cloud Pub/Sub Protocol Binding for CloudEvents 1.0" and the JSON event format of CloudEvents 1.0.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidemark.pipeline.contract.payloads.bounds import as_object, json_kind, parsed
from tidemark.pipeline.contract.payloads.rejections import Unreadable, quoted

PREFIX = "ce-"
CONTENT_TYPE = "content-type"
DATA_CONTENT_TYPE = f"{PREFIX}datacontenttype"
STRUCTURED, STRUCTURED_JSON = "application/cloudevents", "application/cloudevents+json"
DATA, DATA_BASE64 = "data", "data_base64"
CONTENT = frozenset({DATA, DATA_BASE64})


class Event(NamedTuple):
    """A message without its envelope. Its data is bytes, or, with `is_value`, a `value` parsed from the event's
    JSON."""

    attributes: Mapping[str, str]
    data: bytes
    value: Any = None
    is_value: bool = False


def is_structured(attributes: Mapping[str, str]) -> bool:
    """True if the payload holds the whole event (structured mode)."""
    return attributes.get(CONTENT_TYPE, "").lower().startswith(STRUCTURED)


def opened(attributes: Mapping[str, str], data: bytes) -> Event:
    """Return the event in a message. The context of a structured event overrides the message's attributes.

    Raises Unreadable if a structured event is invalid.
    """
    if not is_structured(attributes):
        said = attributes.get(CONTENT_TYPE)
        if said and not attributes.get(DATA_CONTENT_TYPE):
            attributes = {**attributes, DATA_CONTENT_TYPE: said}
        return Event(attributes, data)
    written = attributes[CONTENT_TYPE]
    if _media_type(written) != STRUCTURED_JSON:
        raise Unreadable(f"a CloudEvent as {quoted(written)}; only {STRUCTURED_JSON} is read")
    event = as_object(parsed(data))
    context = {**attributes, **_context(event)}
    if DATA_BASE64 in event:
        return Event(context, _from_base64(event[DATA_BASE64]))
    value = event.get(DATA)
    declared = context.get(DATA_CONTENT_TYPE)
    if isinstance(value, str) and declared and not _is_json(_media_type(declared)):
        return Event(context, value.encode())
    return Event(context, b"", value, is_value=value is not None)


def _context(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the event's context as attributes, with each value in its canonical text form."""
    said = {}
    for name, value in event.items():
        if name in CONTENT or value is None:
            continue
        if not isinstance(value, str | bool | int):
            raise Unreadable(f"not a CloudEvent: its {quoted(name)} is {json_kind(value)}")
        said[PREFIX + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return said


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Unreadable(f"not a CloudEvent: its {DATA_BASE64} is not base64 ({error})") from error


def _media_type(written: str) -> str:
    return written.partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    return media_type.endswith(("/json", "+json"))
