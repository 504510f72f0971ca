"""Notes of runs and of sensors' ticks that failed: what `tidemark status` says of them, with Dagster up or not.

They are for people. Nothing is decided by them, so one that cannot be written, read or deleted changes nothing.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.errors import LakeError, NewerFormat, WindowExpired, WindowNotClosed
from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.printable import printable

logger = logging.getLogger(__name__)

OF_TABLES = "failed_table_runs/"
"""Notes of runs of custom tables, in a folder for each."""

KEPT = 20
"""Notes of runs that stay in a folder; the oldest go first."""

REASON_LENGTH, STRETCHES = 300, 100
"""The most characters of a reason, and the most stretches of windows, that a note has."""

STAMP = "%Y-%m-%dT%H-%M-%S.%fZ"
SECRET = re.compile(r"\b(token|secret|password|key)=[^;&,\s)\"']+", re.IGNORECASE)
"""Secrets that an address of Spark may carry and a note must not."""

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=-]")


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed: when, why in one line, and over which windows: the keys of the first and the last of each
    stretch, both included. A run without windows reads the subscriptions, and `job` is its job."""

    run: str
    at: datetime
    reason: str
    stretches: Sequence[tuple[str, str]] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class FailedTick:
    """A sensor whose ticks fail, or that `waits` with some of its messages: how often without a success in between,
    when first and last, and the last reason in one line."""

    sensor: str
    failures: int
    since: datetime
    last: datetime
    reason: str
    waits: bool = False

    @property
    def kind(self) -> str:
        """The kind of the error, which says nothing of any data."""
        return self.reason.partition(":")[0]

    def after(self, earlier: "FailedTick | None", more: int = 1) -> "FailedTick":
        """This one, with what an earlier one knows, which it makes so many more."""
        if earlier is None or earlier.waits != self.waits:
            return self
        failures = max(self.failures, earlier.failures + more)
        return replace(self, failures=failures, since=min(self.since, earlier.since))

    def sentence(self) -> str:
        """All of it as one sentence."""
        if self.waits:
            return f"the sensor {self.sensor} waits since {iso(self.since)}: {self.reason}"
        return f"ticks of the sensor {self.sensor} {failed(self.failures, self.since, self.last)}: {self.reason}"


def failed(times: int, since: datetime, last: datetime) -> str:
    """Format how often something failed in a stretch, and when: the end of a sentence."""
    return (
        f"failed {times} times since {iso(since)}, last at {iso(last)}" if times > 1 else f"failed once, at {iso(last)}"
    )


RUNS = JsonKind("failed_runs/", holds=FailedRun)
"""Runs over windows of `heartbeat_diffs`, and those that read the subscriptions."""

TICKS = JsonKind("failed_ticks/", holds=FailedTick)
"""One of each sensor while its ticks fail, and none once one has succeeded."""


class FailedRuns:
    """The newest notes, of a custom table or, without its name, of all other runs."""

    def __init__(self, objects: ObjectStore, table: str | None = None) -> None:
        self._notes = Notes(objects, RUNS if table is None else replace(RUNS, prefix=f"{OF_TABLES}{table}/"))

    @contextmanager
    def noting(self, run: str, stretches: Sequence[tuple[str, str]], clock: Clock, job: str = "") -> Iterator[None]:
        """Note what the block raises, and pass it on. A request for windows that are not to be computed, or a
        cancelled run, is not a failure. In a lake of a later version nothing is written."""
        try:
            yield
        except (WindowNotClosed, WindowExpired, NewerFormat):
            raise
        except Exception as error:
            failed = FailedRun(run, clock.now(), reason_of(error), stretches[:STRETCHES], job)
            with _without_failing("failed runs"):
                at = failed.at.astimezone(UTC).strftime(STAMP)
                self._notes.create(f"{at}-{NOT_IN_NAMES.sub('-', run)}", failed)
                self._notes.keep_newest(KEPT)
            raise

    def newest(self) -> list[FailedRun]:
        """The notes, the newest first, at most KEPT. Raises LakeError if the lake does not answer."""
        return [note for _, note in self._newest()]

    def settled(self, job: str) -> None:
        """Delete the notes of a job that reads the subscriptions, since a run of it has done so."""
        with _without_failing("failed runs"):
            self._notes.delete(*(key for key, note in self._newest() if note.job == job))

    def _newest(self) -> Iterator[tuple[str, FailedRun]]:
        return self._notes.readable(reversed(self._notes.listed()[-KEPT:]))


class FailedTicks:
    """The notes of one lake."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, TICKS)

    def note(self, failed: FailedTick) -> FailedTick:
        """Note that a tick failed, and return that with what an earlier note knows. It tries once, and for a few
        seconds at most."""
        with _without_failing(f"ticks of {failed.sensor}"):
            there, generation = self._notes.found(failed.sensor)
            failed = failed.after(there)
            self._notes.replace(failed.sensor, failed, generation)
        return failed

    def clear(self, sensor: str) -> None:
        """A tick has succeeded."""
        with _without_failing(f"ticks of {sensor}"):
            self._notes.delete(sensor)

    def newest(self) -> list[FailedTick]:
        """The sensors whose ticks fail, by name. Raises LakeError if the lake does not answer."""
        return [failed for _, failed in self._notes.readable(self._notes.listed())]


def reason_of(error: BaseException) -> str:
    """The first line of what an error says, with its kind, and without secrets of an address or control characters."""
    text = str(error).encode(errors="replace").decode()  # JSON has no lone surrogates, and names of files may
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = printable(": ".join([type(error).__name__, *(SECRET.sub(r"\1=…", line) for line in lines[:1])]))
    return said if len(said) <= REASON_LENGTH else f"{said[: REASON_LENGTH - 1]}…"


@contextmanager
def _without_failing(what: str) -> Iterator[None]:
    """Let a failure to note pass: the outcome of the run or the tick matters more."""
    try:
        yield
    except (LakeError, OSError) as error:
        logger.warning("the lake's notes of %s are not up to date: %s", what, error)
