"""Payloads that are JSON objects."""

from typing import Any

import orjson

from tidemark.pipeline.payloads.gzipped import MAGIC, Inflater
from tidemark.pipeline.payloads.rejections import Rejection, RejectionReason, Unreadable


def read_payload(data: bytes, inflater: Inflater | None = None) -> dict[str, Any] | Rejection:
    """The payload as a JSON object, or the reason why it is not one. With an `inflater` it may be compressed."""
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if inflater is not None and data.startswith(MAGIC):  # here, so that what is not compressed pays nothing
            try:
                return read_payload(inflater.inflate(data))
            except Unreadable as unreadable:
                return Rejection(RejectionReason.UNREADABLE_PAYLOAD, str(unreadable))
        return Rejection(RejectionReason.UNREADABLE_PAYLOAD, f"not JSON: {error}")
    if not isinstance(payload, dict):
        return Rejection(RejectionReason.UNREADABLE_PAYLOAD, f"JSON, but a {type(payload).__name__}, not an object")
    return payload


def as_object(value: Any) -> dict[str, Any]:
    """A parsed value that must be an object. Raises Unreadable."""
    if not isinstance(value, dict):
        raise Unreadable(f"JSON, but a {type(value).__name__}, not an object")
    return value


def parsed(data: bytes | str) -> Any:
    """Any JSON value. Raises Unreadable."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error
