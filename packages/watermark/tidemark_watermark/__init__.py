"""The watermark of a tidemark pipeline, read from the object `watermark.json` of its lake, without tidemark.

    from tidemark_watermark import read_watermark

    if read_watermark("gs://my-bucket/lake").is_closed("2026-11-21T05-20Z"):
        ...

It needs read access to that object only. Its answers are those of `tidemark.watermark`, but may be about a minute older
while nothing changes. Both distributions can be installed together.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["NotReadable", "Unreachable", "Watermark", "read_watermark", "wait_for"]

OBJECT = "watermark.json"
FORMAT = 1
"""The newest lake format that this package reads."""

KEY_FORMAT = "%Y-%m-%dT%H-%MZ"
LOOK_EVERY_SECONDS = 5.0
REQUEST_TIMEOUT_SECONDS = 10.0
SERVICE = "https://storage.googleapis.com"
READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"
PASSING = {408, 429}
"""Retryable HTTP statuses below 500. Statuses from 500 on are retryable too."""

EPOCH, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


class NotReadable(Exception):
    """The object cannot be read. The message says why and what to do."""


class Unreachable(NotReadable):
    """The storage did not answer, or answered with a temporary error. The next attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of a pipeline. It never goes back, so a closed window stays closed.

    `event_time` is aware, in UTC, and None until there is a watermark. `promise` says what holds for every message with
    an earlier event time: it has `landed` in the lake, or the consumer of base has `acknowledged` it. `decided_at` and
    `reason` describe the newest decision; an old `decided_at` means that the pipeline is down. `place` is the object's
    address. `rejected` is the number of messages rejected so far. `window_length` is None if there is no object, or if
    an earlier tidemark wrote it.
    """

    place: str
    event_time: datetime | None = None
    decided_at: datetime | None = None
    reason: str | None = None
    sentence: str = ""
    promise: str | None = None
    rejected: int = 0
    window_length: timedelta | None = None

    def has_reached(self, event_time: datetime) -> bool:
        """Return True if the watermark has reached this time. Raises ValueError for a time without a zone."""
        if event_time.tzinfo is None:
            raise ValueError(f"{event_time} has no time zone; pass a time with one, such as UTC")
        return self.event_time is not None and event_time <= self.event_time

    def is_closed(self, window: str | datetime) -> bool:
        """Return True if the watermark has reached the end of a window. `window` is the window's key
        (`2026-11-21T05-20Z`) or its end. Raises ValueError for a string that is not a window's key and for a time
        without a zone. Raises NotReadable for a key if an earlier tidemark wrote the object without window lengths."""
        if isinstance(window, str):
            if self.decided_at is None:
                start_of(window)
                return False
            window = self.end_of(window)
        return self.has_reached(window)

    def end_of(self, key: str) -> datetime:
        """Return the end of the window with this key. Raises ValueError if the text is not a window's key. Raises
        NotReadable if the object does not exist, or if an earlier tidemark wrote it without the length of windows."""
        start = start_of(key)
        if self.window_length is None:
            raise NotReadable(
                f"{self.place} does not contain the length of windows; instead of the key {key}, give the window's end"
            )
        if (start - EPOCH) % self.window_length:
            raise ValueError(f"{key} is not the start of a window: windows start at multiples of {self.window_length}")
        return start + self.window_length


def read_watermark(lake: str | Path) -> Watermark:
    """Read the watermark of the pipeline with this lake: a folder, `gs://bucket/prefix`, or the object itself.

    In a bucket, this takes one request with Google's application default credentials. If `$STORAGE_EMULATOR_HOST` names
    another server, no credentials are sent. If the object does not exist, the result has no event time, and no window
    is closed. Raises NotReadable, and ValueError if `lake` is not an address.
    """
    place = place_of(lake)
    content = _in_bucket(place) if place.startswith("gs://") else _on_disk(Path(place))
    if content is None:
        return Watermark(place, sentence=f"there is no {place}: no decision has been made yet, or the address is wrong")
    return parsed(content, place)


def wait_for(lake: str | Path, until: str | datetime, timeout: timedelta) -> Watermark:
    """Wait until the watermark has reached an event time, or the end of the window with this key, but at most for the
    timeout. Return the last watermark read. Polls every five seconds, and retries an unreachable server until the
    timeout. Raises NotReadable, and ValueError like `read_watermark` and `is_closed`."""
    ends = time.monotonic() + timeout.total_seconds()
    while True:
        failed, found = None, Watermark(place_of(lake))
        try:
            found = read_watermark(lake)
        except Unreachable as error:
            failed = error
        is_reached, left = found.is_closed(until), ends - time.monotonic()
        if not is_reached and left > 0:
            time.sleep(min(left, LOOK_EVERY_SECONDS))
        elif failed is not None:
            raise failed
        else:
            return found


def start_of(key: str) -> datetime:
    """Return the start of the window with this key. Raises ValueError if the text is not a key."""
    try:
        start = datetime.strptime(key, KEY_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{key!r} is not a window's key (its start, such as 2026-11-21T05-20Z)") from error
    if start.strftime(KEY_FORMAT) != key or start >= LATEST:  # strptime also reads unpadded numbers
        raise ValueError(f"{key} is not a window's key such as 2026-11-21T05-20Z")
    return start


def place_of(lake: str | Path) -> str:
    """Return the address of `watermark.json` in a lake. Raises ValueError if `lake` is not an address."""
    address = str(lake).removeprefix("file:").rstrip("/")
    is_folder = "://" not in address and not address.startswith("gs:")  # `Path("gs://…")` has one slash
    if not address or not (is_folder or address.startswith("gs://")):
        raise ValueError(f"{str(lake)!r} names no lake; write gs://my-bucket/lake, or a folder")
    return address if address.endswith(f"/{OBJECT}") or address == OBJECT else f"{address}/{OBJECT}"


def parsed(content: bytes, place: str) -> Watermark:
    """Parse the content of `watermark.json`. Raises NotReadable if it is damaged or in a newer format."""
    try:
        facts = json.loads(content)
        if not isinstance(facts, dict):
            raise ValueError("it is not a JSON object")
        _refuse_newer(facts, place)
        seconds = facts.get("window_seconds")
        if seconds is not None and not seconds > 0:
            raise ValueError(f"window_seconds is {seconds}")
        return Watermark(
            place,
            None if facts["watermark"] is None else _moment(facts["watermark"]),
            _moment(facts["decided_at"]),
            None if facts["reason"] is None else str(facts["reason"]),
            str(facts.get("sentence", "")),
            str(facts.get("promise", "landed")),
            int(facts.get("rejected", 0)),
            None if seconds is None else timedelta(seconds=seconds),
        )
    except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise NotReadable(
            f"{place} is damaged ({error!r}); delete it, and the pipeline writes a new one within two minutes"
        ) from error


def _refuse_newer(facts: Mapping[str, Any], place: str) -> None:
    written = str(facts.get("tidemark.format", FORMAT))
    if not written.isdecimal() or int(written) > FORMAT:
        raise NotReadable(
            f"{place} was written by tidemark {facts.get('tidemark.version', 'of a later version')} in format {written}"
            f", but this package reads no format above {FORMAT}: install the tidemark-watermark of that version"
        )


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.astimezone(UTC)


def _on_disk(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotReadable(f"{path} cannot be read: {error}; this user needs the right to read it") from error


def _in_bucket(place: str) -> bytes | None:
    import requests  # a lake in a folder needs neither of them
    from google.auth.exceptions import GoogleAuthError, TransportError

    bucket, _, name = place.removeprefix("gs://").partition("/")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    server = emulator.rstrip("/") if "://" in emulator or not emulator else f"http://{emulator}"
    url = f"{server or SERVICE}/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
    try:
        with requests.Session() if server else _authorized() as session:
            session.trust_env = not server  # an emulator gets neither a proxy nor a password of ~/.netrc
            answer = session.get(url, params={"alt": "media"}, timeout=REQUEST_TIMEOUT_SECONDS)
    except (requests.RequestException, TransportError) as error:
        raise Unreachable(f"no answer for {place}: {error}; check the network") from error
    except GoogleAuthError as error:
        _credentials.cache_clear()  # the next call finds a new login
        kind = Unreachable if error.retryable else NotReadable
        raise kind(
            f"no usable credentials for {place}: {error}; run `gcloud auth application-default login`, or give this "
            "program an account with roles/storage.objectViewer on the bucket"
        ) from error
    if answer.status_code == 404:
        return None
    if answer.status_code in (401, 403):
        raise NotReadable(
            f"these credentials may not read {place}: storage.objects.get is needed. Grant them "
            f"roles/storage.objectViewer on gs://{bucket}"
        )
    if not answer.ok:
        passing = answer.status_code in PASSING or answer.status_code >= 500
        raise (Unreachable if passing else NotReadable)(
            f"Cloud Storage answered {answer.status_code} for {place}; check the address, or try again later"
        )
    return answer.content


def _authorized() -> Any:
    from google.auth.transport.requests import AuthorizedSession

    return AuthorizedSession(_credentials())  # type: ignore[no-untyped-call]


@cache
def _credentials() -> Any:
    """Return Google's application default credentials, cached so that reads share a token."""
    import google.auth

    return google.auth.default(scopes=[READ_ONLY])[0]
