"""Notes about failed runs and failed sensor ticks. `tidemark status` shows them, even while Dagster is down.

Only people read the notes and no decision depends on them, so a failure to write, read or delete a note is harmless.
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
"""Prefix of the notes about failed runs of custom tables. Each table has its own folder under this prefix."""

KEPT = 20
"""Maximum number of failed-run notes per folder. The oldest notes are deleted first."""

REASON_LENGTH, STRETCHES = 300, 100
"""Maximum length of a note's reason in characters, and maximum number of window ranges in a note."""

STAMP = "%Y-%m-%dT%H-%M-%S.%fZ"
SECRET = re.compile(r"\b(token|secret|password|key)=[^;&,\s)\"']+", re.IGNORECASE)
"""Matches secrets in a Spark address. They are removed from a note's reason."""

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=-]")


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed run: when it failed, why (in one line), and which windows it computed.

    Each of `stretches` is a range of windows: the keys of its first and its last window. A run that reads the
    subscriptions instead of computing windows has no stretches; `job` is the name of its job.
    """

    run: str
    at: datetime
    reason: str
    stretches: Sequence[tuple[str, str]] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class FailedTick:
    """The failed ticks of a sensor since its last successful tick: their number, the times of the first (`since`) and
    the last failure, and the last failure's reason in one line. `waits` is true if the ticks did not fail, but left
    messages waiting."""

    sensor: str
    failures: int
    since: datetime
    last: datetime
    reason: str
    waits: bool = False

    @property
    def kind(self) -> str:
        """The class name of the error. Unlike the reason, it never contains message data."""
        return self.reason.partition(":")[0]

    def after(self, earlier: "FailedTick | None", more: int = 1) -> "FailedTick":
        """Return this note merged with the sensor's `earlier` note: keep the earlier time of the first failure, and add
        `more` to the earlier number of failures."""
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
    """Return how often and when something failed, as the predicate of a sentence: "failed 3 times since …"."""
    return (
        f"failed {times} times since {iso(since)}, last at {iso(last)}" if times > 1 else f"failed once, at {iso(last)}"
    )


RUNS = JsonKind("failed_runs/", holds=FailedRun)
"""Notes about failed runs that computed windows of `heartbeat_diffs` or read the subscriptions."""

TICKS = JsonKind("failed_ticks/", holds=FailedTick)
"""Notes about failing sensors, one per sensor. A sensor's next successful tick deletes its note."""


class FailedRuns:
    """The newest notes about failed runs of one custom table. Without `table`: about all runs that are not of custom
    tables."""

    def __init__(self, objects: ObjectStore, table: str | None = None) -> None:
        self._notes = Notes(objects, RUNS if table is None else replace(RUNS, prefix=f"{OF_TABLES}{table}/"))

    @contextmanager
    def noting(self, run: str, stretches: Sequence[tuple[str, str]], clock: Clock, job: str = "") -> Iterator[None]:
        """Write a note if the `with` block raises, and raise the error again. Write no note if a window is still open
        or has expired, if the run was cancelled, or if a later version of tidemark has written the lake."""
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
        """Return at most KEPT notes, the newest first. Raises LakeError if the lake is unreachable."""
        return [note for _, note in self._newest()]

    def settled(self, job: str) -> None:
        """Delete the notes about failed runs of `job`, which reads the subscriptions, because it has now succeeded."""
        with _without_failing("failed runs"):
            self._notes.delete(*(key for key, note in self._newest() if note.job == job))

    def _newest(self) -> Iterator[tuple[str, FailedRun]]:
        return self._notes.readable(reversed(self._notes.listed()[-KEPT:]))


class FailedTicks:
    """The notes about failing sensors in one lake."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, TICKS)

    def note(self, failed: FailedTick) -> FailedTick:
        """Merge `failed` with the sensor's earlier note, write the merged note, and return it. Tries once, and takes a
        few seconds at most."""
        with _without_failing(f"ticks of {failed.sensor}"):
            there, generation = self._notes.found(failed.sensor)
            failed = failed.after(there)
            self._notes.replace(failed.sensor, failed, generation)
        return failed

    def clear(self, sensor: str) -> None:
        """Delete the sensor's note, because a tick has succeeded."""
        with _without_failing(f"ticks of {sensor}"):
            self._notes.delete(sensor)

    def newest(self) -> list[FailedTick]:
        """Return all notes, ordered by sensor name. Raises LakeError if the lake is unreachable."""
        return [failed for _, failed in self._notes.readable(self._notes.listed())]


def reason_of(error: BaseException) -> str:
    """Return the error's class name and the first line of its message. Control characters and secrets in addresses are
    removed."""
    text = str(error).encode(errors="replace").decode()  # file names may have lone surrogates, which JSON cannot hold
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = printable(": ".join([type(error).__name__, *(SECRET.sub(r"\1=…", line) for line in lines[:1])]))
    return said if len(said) <= REASON_LENGTH else f"{said[: REASON_LENGTH - 1]}…"


@contextmanager
def _without_failing(what: str) -> Iterator[None]:
    """Log a LakeError or OSError of the `with` block instead of raising it. A failure to write a note must not hide the
    outcome of the run or tick that it is about."""
    try:
        yield
    except (LakeError, OSError) as error:
        logger.warning("the lake's notes about %s are not up to date: %s", what, error)
