"""Records failed runs and failed sensor ticks in the lake. `tidemark status` shows them, even while Dagster is down.

No decision about the watermark depends on these records. Errors in writing and deleting them are logged, not
raised.
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
"""Folder of the records about failed runs of custom tables. Each table has its own folder in it."""

KEPT = 20
"""Maximum number of records of failed runs per folder. The oldest ones are deleted first."""

REASON_LENGTH, STRETCHES = 300, 100
"""REASON_LENGTH is the maximum number of characters of a recorded reason. STRETCHES is the maximum number of ranges of
windows in the record of a failed run."""

STAMP = "%Y-%m-%dT%H-%M-%S.%fZ"
SECRET = re.compile(r"\b(token|secret|password|key)=[^;&,\s)\"']+", re.IGNORECASE)
"""Matches secrets in the address of a Spark server. They are removed from a recorded reason."""

RAISED = re.compile(r"[A-Za-z_.]*(Error|Exception)\b")
"""Matches the line of a traceback that says what was raised."""

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=-]")


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The record of a failed run. `reason` is one line. `stretches` are the ranges of windows that the run should have
    computed, each as the keys of its first and last window. A run that reads the subscriptions has no `stretches`;
    `job` is the name of its job."""

    run: str
    at: datetime
    reason: str
    stretches: Sequence[tuple[str, str]] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class FailedTick:
    """The record of a sensor's failed or waiting ticks since its last successful tick. `failures` is their number,
    `since` and `last` are the times of the first and the last one, and `reason` explains the last one in one line. If
    `waits` is true, the ticks did not fail: they left messages that cannot be judged yet, or a run waits in Dagster's
    queue."""

    sensor: str
    failures: int
    since: datetime
    last: datetime
    reason: str
    waits: bool = False

    @property
    def kind(self) -> str:
        """The class name of the error. Unlike `reason`, it never contains data of a message."""
        return self.reason.partition(":")[0]

    def after(self, earlier: "FailedTick | None", more: int = 1) -> "FailedTick":
        """Return this record merged with the sensor's `earlier` one: it has the older `since`, and the larger of
        `failures` and `earlier.failures + more`. Ignores an `earlier` record with a different `waits`."""
        if earlier is None or earlier.waits != self.waits:
            return self
        failures = max(self.failures, earlier.failures + more)
        return replace(self, failures=failures, since=min(self.since, earlier.since))

    def sentence(self) -> str:
        """Return the record as one sentence."""
        if self.waits:
            return f"the sensor {self.sensor} has been waiting since {iso(self.since)}: {self.reason}"
        return f"ticks of the sensor {self.sensor} {failed(self.failures, self.since, self.last)}: {self.reason}"


def failed(times: int, since: datetime, last: datetime) -> str:
    """Return how often and when something failed, for use in a sentence: "failed 3 times since …"."""
    return (
        f"failed {times} times since {iso(since)}, last at {iso(last)}" if times > 1 else f"failed once, at {iso(last)}"
    )


RUNS = JsonKind("failed_runs/", holds=FailedRun)
"""Stores records of failed runs, except runs of custom tables."""

TICKS = JsonKind("failed_ticks/", holds=FailedTick)
"""Stores the records of failed ticks, one per sensor. The sensor's next successful tick deletes its record."""


class FailedRuns:
    """The newest records of failed runs: the runs of the custom table `table` or, if `table` is None, all runs except
    those of custom tables."""

    def __init__(self, objects: ObjectStore, table: str | None = None) -> None:
        self._notes = Notes(objects, RUNS if table is None else replace(RUNS, prefix=f"{OF_TABLES}{table}/"))

    @contextmanager
    def noting(self, run: str, stretches: Sequence[tuple[str, str]], clock: Clock, job: str = "") -> Iterator[None]:
        """If the `with` block raises an error, record the failure and re-raise the error. Nothing is recorded if a
        window is still open or no longer kept, if the run was cancelled, or if a later version of tidemark has written
        the lake."""
        try:
            yield
        except (WindowNotClosed, WindowExpired, NewerFormat):
            raise
        except Exception as error:
            failed = FailedRun(run, clock.now(), reason_of(error), stretches[:STRETCHES], job)
            with _without_failing("failed runs"):
                at = failed.at.astimezone(UTC).strftime(STAMP)
                self._notes.create(f"{at}-{NOT_IN_NAMES.sub('-', run)}", failed)
                # If the clock was set back, older records have later names. Delete these first.
                by_age = sorted(self._notes.listed(), key=lambda key: (key < f"{at}~", key))
                self._notes.delete(*by_age[:-KEPT])
            raise

    def newest(self) -> list[FailedRun]:
        """Return at most KEPT records, the newest first, without damaged ones. Raises LakeError."""
        return [note for _, note in self._newest()]

    def settled(self, job: str) -> None:
        """Delete the records of failed runs of `job`. Call this after a run of the job has succeeded."""
        with _without_failing("failed runs"):
            self._notes.delete(*(key for key, note in self._newest() if note.job == job))

    def _newest(self) -> Iterator[tuple[str, FailedRun]]:
        return self._notes.readable(reversed(self._notes.listed()[-KEPT:]))


class FailedTicks:
    """The records of failed sensor ticks in one lake."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, TICKS)

    def note(self, failed: FailedTick) -> FailedTick:
        """Merge `failed` with the sensor's earlier record, store the result, and return it. Makes one attempt, which
        takes a few seconds at most."""
        with _without_failing(f"ticks of {failed.sensor}"):
            there, generation = self._notes.found(failed.sensor)
            failed = failed.after(there)
            self._notes.replace(failed.sensor, failed, generation)
        return failed

    def clear(self, sensor: str) -> bool:
        """Delete the sensor's record after a successful tick. Return False if the record could not be deleted."""
        is_gone = False
        with _without_failing(f"ticks of {sensor}"):
            self._notes.delete(sensor)
            is_gone = True
        return is_gone  # noqa: RET504 (an error ends the block early)

    def newest(self) -> list[FailedTick]:
        """Return the records of all sensors, without damaged ones, in order of the sensors' names. Raises
        LakeError."""
        return [failed for _, failed in self._notes.readable(self._notes.listed())]


def reason_of(error: BaseException, at_most: int = REASON_LENGTH) -> str:
    """Return the error's class name and the first line of its message, without secrets and control characters, cut to
    `at_most` characters. If a Python worker of Spark failed, the line with the worker's error takes the place of the
    first line."""
    text = str(error).encode(errors="replace").decode()  # file names may have lone surrogates, which JSON cannot hold
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if type(error).__name__ == "PythonException":
        lines = [*filter(RAISED.match, lines), *lines]
    said = printable(": ".join([type(error).__name__, *(SECRET.sub(r"\1=…", line) for line in lines[:1])]))
    return said if len(said) <= at_most else f"{said[: at_most - 1]}…"


@contextmanager
def _without_failing(what: str) -> Iterator[None]:
    """Log a LakeError or OSError of the `with` block instead of raising it. An error in writing a record must not hide
    the outcome of the recorded run or tick."""
    try:
        yield
    except (LakeError, OSError) as error:
        logger.warning("the lake's records of %s could not be updated: %s", what, error)
