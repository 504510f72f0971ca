"""Notes of failed runs and failed sensor ticks. `tidemark status` shows them, whether Dagster is up or not.

The notes are for people only. No decision depends on them, so a failure to write, read or delete a note is harmless.
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
from tidemark.pipeline.phrases import printable

logger = logging.getLogger(__name__)

OF_TABLES = "failed_table_runs/"
"""Notes of custom tables' runs, in one folder per table."""

KEPT = 20
"""Maximum number of run notes per folder; the oldest are deleted first."""

REASON_LENGTH, STRETCHES = 300, 100
"""Maximum length of a reason in characters, and maximum number of ranges of windows in a note."""

STAMP = "%Y-%m-%dT%H-%M-%S.%fZ"
SECRET = re.compile(r"\b(token|secret|password|key)=[^;&,\s)\"']+", re.IGNORECASE)
"""Secrets in a Spark address. A note must not contain them."""

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=-]")


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed run: its time, its reason in one line, and its windows. Each of `stretches` is a range of windows, given
    by the keys of the first and the last. A run that reads the subscriptions has no windows, and `job` names its
    job."""

    run: str
    at: datetime
    reason: str
    stretches: Sequence[tuple[str, str]] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class FailedTick:
    """The failing ticks of a sensor: the number of failures since the last success, the times of the first and the last
    failure, and the last reason in one line. `waits` means that the ticks succeeded but left messages waiting."""

    sensor: str
    failures: int
    since: datetime
    last: datetime
    reason: str
    waits: bool = False

    @property
    def kind(self) -> str:
        """The error's class name. It contains no data of messages."""
        return self.reason.partition(":")[0]

    def after(self, earlier: "FailedTick | None", more: int = 1) -> "FailedTick":
        """Return this note merged with `earlier`: the first time of failure stays, and the failure count grows by
        `more`."""
        if earlier is None or earlier.waits != self.waits:
            return self
        failures = max(self.failures, earlier.failures + more)
        return replace(self, failures=failures, since=min(self.since, earlier.since))

    def sentence(self) -> str:
        """Return the note as one sentence."""
        if self.waits:
            return f"the sensor {self.sensor} waits since {iso(self.since)}: {self.reason}"
        return f"ticks of the sensor {self.sensor} {failed(self.failures, self.since, self.last)}: {self.reason}"


def failed(times: int, since: datetime, last: datetime) -> str:
    """Format how often and when something failed, as the end of a sentence."""
    return (
        f"failed {times} times since {iso(since)}, last at {iso(last)}" if times > 1 else f"failed once, at {iso(last)}"
    )


RUNS = JsonKind("failed_runs/", holds=FailedRun)
"""Failed runs over windows of `heartbeat_diffs`, and failed runs that read the subscriptions."""

TICKS = JsonKind("failed_ticks/", holds=FailedTick)
"""One note per sensor while its ticks fail. The next successful tick deletes it."""


class FailedRuns:
    """The newest notes of a custom table's failed runs or, without `table`, of all other failed runs."""

    def __init__(self, objects: ObjectStore, table: str | None = None) -> None:
        self._notes = Notes(objects, RUNS if table is None else replace(RUNS, prefix=f"{OF_TABLES}{table}/"))

    @contextmanager
    def noting(self, run: str, stretches: Sequence[tuple[str, str]], clock: Clock, job: str = "") -> Iterator[None]:
        """Write a note if the block raises, and raise the error again. Open or expired windows and cancelled runs are
        not failures. Writes nothing to a lake of a later version."""
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
        """Return the notes, the newest first, at most KEPT. Raises LakeError if the lake is unreachable."""
        return [note for _, note in self._newest()]

    def settled(self, job: str) -> None:
        """Delete the notes of a job that reads the subscriptions, after a successful run."""
        with _without_failing("failed runs"):
            self._notes.delete(*(key for key, note in self._newest() if note.job == job))

    def _newest(self) -> Iterator[tuple[str, FailedRun]]:
        return self._notes.readable(reversed(self._notes.listed()[-KEPT:]))


class FailedTicks:
    """The notes of one lake's failing sensors."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, TICKS)

    def note(self, failed: FailedTick) -> FailedTick:
        """Note that a tick failed, and return the note merged with an earlier one. Tries once, for a few seconds at
        most."""
        with _without_failing(f"ticks of {failed.sensor}"):
            there, generation = self._notes.found(failed.sensor)
            failed = failed.after(there)
            self._notes.replace(failed.sensor, failed, generation)
        return failed

    def clear(self, sensor: str) -> None:
        """Delete the sensor's note, after a successful tick."""
        with _without_failing(f"ticks of {sensor}"):
            self._notes.delete(sensor)

    def newest(self) -> list[FailedTick]:
        """Return the notes, ordered by the sensors' names. Raises LakeError if the lake is unreachable."""
        return [failed for _, failed in self._notes.readable(self._notes.listed())]


def reason_of(error: BaseException) -> str:
    """Return the error's class and the first line of its message, without control characters or an address's
    secrets."""
    text = str(error).encode(errors="replace").decode()  # file names may have lone surrogates, which JSON cannot hold
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = printable(": ".join([type(error).__name__, *(SECRET.sub(r"\1=…", line) for line in lines[:1])]))
    return said if len(said) <= REASON_LENGTH else f"{said[: REASON_LENGTH - 1]}…"


@contextmanager
def _without_failing(what: str) -> Iterator[None]:
    """Log an error about a note instead of raising it: the outcome of the run or the tick matters more."""
    try:
        yield
    except (LakeError, OSError) as error:
        logger.warning("the lake's notes of %s are not up to date: %s", what, error)
