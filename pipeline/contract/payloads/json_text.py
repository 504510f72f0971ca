"""Payloads that are JSON objects."""

from typing import Any

import orjson

from tidemark.pipeline.contract.payloads.gzipped import MAGIC, Inflater
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Unreadable


def read_payload(
    data: bytes, inflater: Inflater | None = None, *, may_be_array: bool = False
) -> dict[str, Any] | list[Any] | Rejection:
    """The payload as a JSON object, or as an array if it may be one, or the reason why it is neither. With an
    `inflater` it may be compressed."""
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if inflater is not None and data.startswith(MAGIC):  # here, so that what is not compressed pays nothing
            try:
                return read_payload(inflater.inflate(data), may_be_array=may_be_array)
            except Unreadable as unreadable:
                return Rejection(RejectionReason.UNREADABLE_PAYLOAD, str(unreadable))
        return Rejection(RejectionReason.UNREADABLE_PAYLOAD, f"not JSON: {error}")
    if type(payload) is not dict and not (may_be_array and type(payload) is list):
        return Rejection(RejectionReason.UNREADABLE_PAYLOAD, f"JSON, but {json_kind(payload)}, not an object")
    return payload


def as_object(value: Any, *, may_be_array: bool = False) -> Any:
    """A parsed value that must be an object, or may be an array. Raises Unreadable."""
    if not isinstance(value, dict) and not (may_be_array and isinstance(value, list)):
        raise Unreadable(f"JSON, but {json_kind(value)}, not an object")
    return value


def parsed(data: bytes | str) -> Any:
    """Any JSON value. Raises Unreadable."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error


def json_kind(value: Any) -> str:
    """What a parsed value is, in JSON's words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
