"""Notes of runs that failed, in the lake: what `tidemark status` says of them, with Dagster up or not.

A note is for people. Nothing is decided by it, so a note that cannot be written or read changes nothing.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from tidemark.pipeline import version
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import LakeError, NewerFormat, ObjectMissing, WindowExpired, WindowNotClosed
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import format_of, marks

logger = logging.getLogger(__name__)

FOLDER = "failed_runs/"
"""Notes of runs over windows of `heartbeat_diffs`, and of those that read the subscriptions."""

OF_TABLES = "failed_table_runs/"
"""Notes of runs of tables of one's own, in a folder for each."""

KEPT = 20
"""Notes that stay in a folder; the oldest go first."""

REASON_LENGTH, STRETCHES = 300, 100
"""The most characters of a reason, and the most stretches of windows, that a note has."""

STAMP = "%Y-%m-%dT%H-%M-%S.%fZ"
SECRET = re.compile(r"\b(token|secret|password|key)=[^;&,\s)\"']+", re.IGNORECASE)
"""What an address of Spark's may carry and a note must not."""

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


class FailedRuns:
    """The newest notes, of a table of one's own or, without its name, of all other runs."""

    def __init__(self, objects: ObjectStore, table: str | None = None) -> None:
        self._objects = objects
        self._folder = FOLDER if table is None else f"{OF_TABLES}{table}/"

    @contextmanager
    def noting(self, run: str, stretches: Sequence[tuple[str, str]], clock: Clock, job: str = "") -> Iterator[None]:
        """Note what the block raises, and pass it on. A request for windows that are not to be computed is no failure
        of a run, and neither is a run that is cancelled. In a lake of a later version nothing is written."""
        try:
            yield
        except (WindowNotClosed, WindowExpired, NewerFormat):
            raise
        except Exception as error:
            self._note(FailedRun(run, clock.now(), reason_of(error), stretches[:STRETCHES], job))
            raise

    def newest(self) -> list[FailedRun]:
        """The notes, the newest first, at most KEPT. Raises LakeError if the lake does not answer."""
        return [note for _, note in self._notes()]

    def mended(self, job: str) -> None:
        """Delete the notes of a job that reads the subscriptions, since a run of it has done so."""
        try:
            for name, note in self._notes():
                if note.job == job:
                    self._objects.delete(name)
        except (LakeError, OSError) as error:  # people alone read them, and they are spoken of for a while only
            logger.warning("notes of earlier failures stay in the lake: %s", error)

    def _notes(self) -> Iterator[tuple[str, FailedRun]]:
        for name in sorted(self._objects.names(self._folder), reverse=True)[:KEPT]:
            with suppress(ObjectMissing, ValueError, KeyError, TypeError, AttributeError):
                note = _read(self._objects.read(name))
                yield name, note

    def _note(self, failed: FailedRun) -> None:
        name = f"{self._folder}{failed.at.astimezone(UTC).strftime(STAMP)}-{NOT_IN_NAMES.sub('-', failed.run)}.json"
        facts = {
            **marks(),
            "run": failed.run,
            "at": failed.at.isoformat(),
            "reason": failed.reason,
            "stretches": failed.stretches,
            "job": failed.job,
        }
        try:
            self._objects.create(name, json.dumps(facts).encode())
            for earlier in sorted(self._objects.names(self._folder))[:-KEPT]:
                self._objects.delete(earlier)
        except (LakeError, OSError) as error:  # the run's own failure matters more
            logger.warning("the lake has no note of this run's failure: %s", error)


def tables_with_notes(objects: ObjectStore) -> list[str]:
    """The tables of one's own of which there are notes, by name. Raises LakeError if the lake does not answer."""
    return sorted({name.split("/")[1] for name in objects.names(OF_TABLES)})


def reason_of(error: BaseException) -> str:
    """The first line of what an error says, with its kind and without secrets of an address."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = ": ".join([type(error).__name__, *(SECRET.sub(r"\1=…", line) for line in lines[:1])])
    return said if len(said) <= REASON_LENGTH else f"{said[: REASON_LENGTH - 1]}…"


def _read(content: bytes) -> FailedRun:
    """A note. Raises ValueError, KeyError, TypeError or AttributeError for anything else."""
    facts = json.loads(content)
    if format_of(facts) > version.FORMAT:  # the lake's own mark refuses it; a note alone is passed over
        raise ValueError(f"format {format_of(facts)}")
    stretches = [(str(first), str(last)) for first, last in facts["stretches"]]
    at, job = datetime.fromisoformat(facts["at"]), str(facts.get("job", ""))
    return FailedRun(str(facts["run"]), at, str(facts["reason"]), stretches, job)
