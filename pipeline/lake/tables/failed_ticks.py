"""Notes of sensors whose ticks fail, in the lake: what `tidemark status` says of them, with Dagster up or not.

A sensor has one note while its ticks fail, and none once one has succeeded. It is for people. Nothing is decided by it,
so a note that cannot be written, read or deleted changes nothing.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from tidemark.pipeline import version
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeError, ObjectMissing
from tidemark.pipeline.lake.store.objects import ReplaceableObjects
from tidemark.pipeline.lake.tables.failed_runs import reason_of
from tidemark.pipeline.version import format_of, marks

logger = logging.getLogger(__name__)

FOLDER = "failed_ticks/"


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

    def sentence(self) -> str:
        """All of it as one sentence."""
        if self.waits:
            return f"the sensor {self.sensor} waits since {iso(self.since)}: {self.reason}"
        times = f"{self.failures} times since {iso(self.since)}, last" if self.failures > 1 else "once,"
        return f"ticks of the sensor {self.sensor} failed {times} at {iso(self.last)}: {self.reason}"


class FailedTicks:
    """The notes of one lake."""

    def __init__(self, objects: ReplaceableObjects) -> None:
        self._objects = objects

    def note(self, sensor: str, error: BaseException | str, at: datetime) -> None:
        """Note that a tick failed, or in a text what it waits for. It tries once, and for a few seconds at most."""
        with _without_failing(sensor):
            there, generation = self._read(sensor)
            waits = isinstance(error, str)
            failed = FailedTick(sensor, 1, at, at, error if isinstance(error, str) else reason_of(error), waits)
            if there is not None and there.waits == waits:
                failed = replace(failed, failures=there.failures + 1, since=there.since)
            facts = {
                **marks(),
                "sensor": failed.sensor,
                "failures": failed.failures,
                "since": failed.since.isoformat(),
                "last": failed.last.isoformat(),
                "reason": failed.reason,
                "waits": failed.waits,
            }
            self._objects.replace(_name(sensor), json.dumps(facts).encode(), generation)

    def clear(self, sensor: str) -> None:
        """A tick has succeeded."""
        with _without_failing(sensor):
            self._objects.delete(_name(sensor))

    def newest(self) -> list[FailedTick]:
        """The sensors whose ticks fail, by name. Raises LakeError if the lake does not answer."""
        names = (name.removeprefix(FOLDER).removesuffix(".json") for name in self._objects.names(FOLDER))
        return [failed for name in names if (failed := self._read(name)[0]) is not None]

    def _read(self, sensor: str) -> tuple[FailedTick | None, int]:
        try:
            content, generation = self._objects.read_generation(_name(sensor))
        except ObjectMissing:
            return None, 0
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            facts = json.loads(content)
            if format_of(facts) <= version.FORMAT:
                since, last = (datetime.fromisoformat(facts[name]) for name in ("since", "last"))
                said = int(facts["failures"]), since, last, str(facts["reason"]), bool(facts.get("waits"))
                return FailedTick(sensor, *said), generation
        return None, generation


@contextmanager
def _without_failing(sensor: str) -> Iterator[None]:
    """Let a failure to note pass: the tick's own outcome matters more."""
    try:
        yield
    except (LakeError, OSError) as error:
        logger.warning("the lake's note of failing ticks of %s is not up to date: %s", sensor, error)


def _name(sensor: str) -> str:
    return f"{FOLDER}{sensor}.json"
