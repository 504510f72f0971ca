"""Payloads that are JSON objects."""

from typing import Any

import orjson

from tidemark.pipeline.contract.payloads.bounds import MOST_VALUES, refuse_many_values
from tidemark.pipeline.contract.payloads.rejections import Unreadable


def parsed(data: bytes) -> Any:
    """Any JSON value. Raises Unreadable."""
    if len(data) > MOST_VALUES:
        refuse_many_values(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error


def as_object(value: Any, *, may_be_array: bool = False) -> Any:
    """A parsed value that must be an object, or may be an array. Raises Unreadable."""
    if type(value) is not dict and not (may_be_array and type(value) is list):
        raise Unreadable(f"JSON, but {json_kind(value)}, not an object")
    return value


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
