"""Event times as publishers write them, read as microseconds since the epoch."""

import re
from collections.abc import Mapping
from datetime import datetime, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any

from tidemark.pipeline.clock import from_us, iso, to_us

MILLISECONDS = re.compile(r"-?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"-?\d{1,21}(\.\d{1,12})?", re.ASCII)
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,12})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
LENIENT = re.compile(RFC_3339.pattern.replace("[Tt]", "[Tt ]") + "?", re.ASCII)
"""RFC 3339, but with a space allowed in place of the T, and the zone optional."""

HOUR_US = 3_600_000_000
"""Largest difference from the publish time at which another unit is suggested: an hour, in microseconds."""


class EventTimeUnit(StrEnum):
    """The format of an event time. AUTO accepts whole milliseconds and RFC 3339."""

    AUTO = "auto"
    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    RFC_3339 = "rfc3339"

    @property
    def words(self) -> str:
        """Human-readable name of any unit except AUTO."""
        return "RFC 3339" if self is EventTimeUnit.RFC_3339 else f"{self.name.lower()} since the epoch"


NANOSECONDS_EACH: Mapping[EventTimeUnit, int] = {
    EventTimeUnit.AUTO: 10**6,
    EventTimeUnit.SECONDS: 10**9,
    EventTimeUnit.MILLISECONDS: 10**6,
    EventTimeUnit.MICROSECONDS: 10**3,
    EventTimeUnit.NANOSECONDS: 1,
}


def read_event_time(
    written: Any, unit: EventTimeUnit = EventTimeUnit.AUTO, timezone: tzinfo | None = None
) -> int | None:
    """Return an event time in microseconds since the epoch, exact and rounded down, or None if unreadable. Never
    raises.

    Numbers may be JSON numbers or text. With the unit RFC_3339 or a `timezone`, a space may replace the T; with a
    `timezone`, the zone may be absent. A local time that a clock change repeats is read as the earlier of the two. For
    one that the change skips, the offset from before the change applies.
    """
    if unit is EventTimeUnit.RFC_3339:
        return _moment(written, LENIENT, timezone)
    if unit is not EventTimeUnit.AUTO:
        return _count(written, unit, NUMBER)
    milliseconds = _count(written, unit, MILLISECONDS)
    form = RFC_3339 if timezone is None else LENIENT
    return _moment(written, form, timezone) if milliseconds is None else milliseconds


def advice(written: Any, unit: EventTimeUnit, timezone: tzinfo | None, published_us: int) -> str:
    """Return a hint at the setting that would make a rejected value readable; empty if there is none.

    Another unit is suggested only if it reads a time within an hour of the publish time.
    """
    read = read_event_time(written, unit, timezone)
    for other in EventTimeUnit:
        us = read_event_time(written, other, timezone)
        if us is not None and us != read and other is not EventTimeUnit.AUTO and abs(us - published_us) <= HOUR_US:
            words = other.words.removesuffix(" since the epoch")
            return f'; as {words} it would be {iso(from_us(us))}: set message.event_time_unit = "{other}"'
    is_without_zone = isinstance(written, str) and LENIENT.fullmatch(written) and not written[19:].strip(".0123456789")
    return "; it has no zone: set message.timezone" if is_without_zone and timezone is None else ""


def _count(written: Any, unit: EventTimeUnit, form: re.Pattern[str]) -> int | None:
    if isinstance(written, float):
        written = format(Decimal(repr(written)), "f")  # the shortest decimal that is read as this number
    elif isinstance(written, int) and not isinstance(written, bool) and written.bit_length() <= 64:
        written = str(written)
    if not isinstance(written, str) or not form.fullmatch(written):
        return None
    whole, _, decimals = written.partition(".")
    return int(whole + decimals) * NANOSECONDS_EACH[unit] // (1000 * int(10 ** len(decimals)))


def _moment(written: Any, form: re.Pattern[str], timezone: tzinfo | None) -> int | None:
    if not isinstance(written, str) or not form.fullmatch(written):
        return None
    try:
        moment = datetime.fromisoformat(written.upper())
        if moment.tzinfo is None:
            if timezone is None:
                return None
            moment = moment.replace(tzinfo=timezone)
        return to_us(moment)
    except (ValueError, OverflowError):
        return None
