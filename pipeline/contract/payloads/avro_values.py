"""Converters of Avro values that JSON has no form for: times become RFC 3339 text, bytes base64, decimals numbers, and
NaN null.

They are readers of tidemark's own logical types, which `avro_types` writes into each schema. fastavro calls them with
the value and the schemas of writer and reader, so the values need no second pass.
"""

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from fastavro.read import LOGICAL_READERS

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (the zone, if any, is appended as text)
OWN = "tidemark-"
MOST_DIGITS = 1000
"""Most digits of a decimal type. One that declares more is read as bytes, as the specification requires for invalid
logical types."""

DECIMALS = Context(prec=MOST_DIGITS)
LONGEST_DECIMAL = 416
"""Bytes of that many digits. Reading a decimal takes time quadratic in its length."""


def _finite(value: float, *_: Any) -> float | None:
    return value if math.isfinite(value) else None


def _base64(value: bytes, *_: Any) -> str:
    return base64.b64encode(value).decode()


def _written(microseconds: int, after: str = "") -> str:
    """Format a time since the epoch as RFC 3339, followed by `after` in place of the zone."""
    return (EPOCH + timedelta(0, 0, microseconds)).isoformat("T", "microseconds") + after


def _nanos(value: int) -> str:
    return _written(value // 1000, f"{value % 1000:03d}" if value % 1000 else "")


def _date(value: int, *_: Any) -> str:
    return date.fromordinal(EPOCH.toordinal() + value).isoformat()


def _time(microseconds: int) -> str:
    if not 0 <= microseconds < 86_400_000_000:
        raise ValueError(f"{microseconds} microseconds is not a time of day")
    return (EPOCH + timedelta(microseconds=microseconds)).time().isoformat()


def plain_number(value: Decimal) -> int | float | str:
    """Return a decimal as a number if a JSON number holds it exactly, otherwise as text."""
    if value == value.to_integral_value() and abs(value) < 1 << 63:
        return int(value)
    number = float(value)
    return number if math.isfinite(number) and Decimal(repr(number)) == value else format(value, "f")


def _decimal(value: bytes, schema: Mapping[str, Any], *_: Any) -> int | float | str:
    if len(value) > LONGEST_DECIMAL:
        raise ValueError(f"a decimal of {len(value)} bytes")
    unscaled = Decimal(int.from_bytes(value, "big", signed=True))
    return plain_number(unscaled.scaleb(-schema.get("scale", 0), DECIMALS))


OF_LOGICAL: Mapping[tuple[str, str], str] = {
    ("long", "timestamp-millis"): "utc-millis",
    ("long", "timestamp-micros"): "utc-micros",
    ("long", "timestamp-nanos"): "utc-nanos",
    ("long", "local-timestamp-millis"): "local-millis",
    ("long", "local-timestamp-micros"): "local-micros",
    ("long", "local-timestamp-nanos"): "local-nanos",
    ("int", "date"): "date",
    ("int", "time-millis"): "time-millis",
    ("long", "time-micros"): "time-micros",
    ("bytes", "decimal"): "decimal",
    ("fixed", "decimal"): "decimal",
}
"""Readers of Avro's logical types. A UUID is already text, and an unknown logical type is read as its underlying
type."""

OF_TYPE: Mapping[str, str] = {"float": "finite", "double": "finite", "bytes": "base64", "fixed": "base64"}
"""Readers of types without a logical type, where needed."""

READERS: Mapping[str, Callable[..., Any]] = {
    "finite": _finite,
    "base64": _base64,
    "utc-millis": lambda value, *_: _written(value * 1000, "Z"),
    "utc-micros": lambda value, *_: _written(value, "Z"),
    "utc-nanos": lambda value, *_: _nanos(value) + "Z",
    "local-millis": lambda value, *_: _written(value * 1000),
    "local-micros": lambda value, *_: _written(value),
    "local-nanos": lambda value, *_: _nanos(value),
    "date": _date,
    "time-millis": lambda value, *_: _time(value * 1000),
    "time-micros": lambda value, *_: _time(value),
    "decimal": _decimal,
}


def register() -> None:
    """Register the readers with fastavro, whose table is global to the process."""
    for kind, name in {*((kind, name) for (kind, _), name in OF_LOGICAL.items()), *OF_TYPE.items()}:
        LOGICAL_READERS[f"{kind}-{OWN}{name}"] = READERS[name]


register()
