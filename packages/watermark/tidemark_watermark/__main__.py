"""`tidemark-watermark`: show the watermark of a lake, or wait for it, with the options and exit codes of
`tidemark watermark`, except `--computed`."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from tidemark_watermark import EPOCH, LATEST, NotReadable, Watermark, read_watermark, start_of, wait_for

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
PART = r"(\d{1,12}(?:\.\d{1,6})?)(ms|[smhd])"

LONGEST = timedelta(days=36_500)


def duration(text: str) -> timedelta:
    """Parse a duration such as `90s`, `10m`, `0.5s` or `1h30m`; a bare `0` is zero."""
    seconds = sum(float(count) * UNITS[unit] for count, unit in re.findall(PART, text))
    if (text != "0" and not re.fullmatch(f"({PART})+", text)) or seconds > LONGEST.total_seconds():
        raise argparse.ArgumentTypeError(f"{text} is not a duration of at most 36500d, such as 90s, 10m or 1h30m")
    return timedelta(seconds=seconds)


def key_or_time(text: str) -> str | datetime:
    """Parse a time with its zone; return a window's key unchanged."""
    if re.search(r"T\d\d-\d\d$", text):
        raise argparse.ArgumentTypeError(f"{text} lacks the Z at the end of a window's key; write {text}Z")
    with suppress(ValueError):
        start_of(text)
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is neither a window's key nor a time") from error
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text} has no time zone; write it as {moment.isoformat()}Z")
    if not EPOCH <= moment < LATEST:
        raise argparse.ArgumentTypeError(f"{text} is not between the years {EPOCH.year} and {LATEST.year} in UTC")
    return moment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit codes: 0 read or reached, 1 not reached or not readable, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="tidemark-watermark", description="Show a lake's watermark, or wait for it.")
    parser.add_argument("lake", help="gs://bucket/prefix, or a folder: where watermark.json is")
    parser.add_argument(
        "--wait-for", type=key_or_time, metavar="TIME|KEY", help="wait for an event time, or a window's end by its key"
    )
    parser.add_argument("--timeout", type=duration, metavar="DURATION", help="limit for --wait-for (default: 10m)")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    asked = parser.parse_args(arguments)
    if asked.timeout is not None and asked.wait_for is None:
        parser.error("--timeout is the limit for --wait-for; add --wait-for with an event time or a window's key")
    timeout = timedelta(minutes=10) if asked.timeout is None else asked.timeout
    try:
        found = read_watermark(asked.lake) if asked.wait_for is None else wait_for(asked.lake, asked.wait_for, timeout)
        if asked.wait_for is not None and not found.is_closed(asked.wait_for):
            until = asked.wait_for if isinstance(asked.wait_for, str) else _text(asked.wait_for)
            waited = f"{timeout.total_seconds():g}s"
            raise NotReadable(f"the watermark has not reached {until} within {waited}: {found.sentence}")
    except NotReadable as error:
        print(f"tidemark-watermark: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    print(json.dumps(facts(found)) if asked.json else found.sentence)
    return 0


def facts(found: Watermark) -> dict[str, object]:
    """Return the watermark as plain values for JSON."""
    return {
        "watermark": _text(found.event_time),
        "decided_at": _text(found.decided_at),
        "reason": found.reason,
        "sentence": found.sentence,
        "promise": found.promise,
        "rejected": found.rejected,
        "lake": found.place.removesuffix("/watermark.json"),
    }


def _text(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    fraction = "milliseconds" if moment.microsecond else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=fraction).replace("+00:00", "Z")


if __name__ == "__main__":
    sys.exit(main())
