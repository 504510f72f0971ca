"""What the readers of a run must remember of copies: less than they may."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.ingest.copies import ATTEMPTS_NOTED
from tidemark.pipeline.ingest.outcome import Taken
from tidemark.pipeline.watermark.histogram import COPY

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Heartbeat = tuple[str, int, str | None]

FEW = 1000
"""A memory of fewer may forget what this expects of it."""


class CopiesSeen:
    """The heartbeats that one worker process has counted, by the attempts that were settled since."""

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._noted: dict[str, dict[Heartbeat, int]] = {}
        self._publish_us: dict[Heartbeat, int] = {}

    def settle(self, attempts: Collection[str]) -> None:
        """These are in the log."""
        for attempt in [one for one in self._noted if one in attempts]:
            for heartbeat, publish_us in self._noted.pop(attempt).items():
                self._publish_us[heartbeat] = min(publish_us, self._publish_us.get(heartbeat, publish_us))
        for attempt in list(self._noted)[: -ATTEMPTS_NOTED + 1]:
            del self._noted[attempt]

    def counted(self, who: str, taken: Taken, message_ids: Sequence[str]) -> None:
        """An attempt has counted these messages. Fails where it has counted a copy in full of what it must remember."""
        sent, copies, first = self._world.oracle.sent, 0, dict[Heartbeat, int]()
        for one in map(sent.__getitem__, message_ids):
            if one.publisher_id is None or one.flaw is not None:
                continue
            known_us = self._publish_us.get(one.heartbeat)
            if known_us is not None and known_us <= one.publish_us:
                copies += known_us >= self._since_us()
            else:
                first[one.heartbeat] = min(one.publish_us, first.get(one.heartbeat, one.publish_us))
        self._noted[taken.attempt] = first
        counted = int(taken.histogram.count[taken.histogram.event_bucket == COPY].sum())
        self._world.counts["copies"] += counted
        if counted < copies:
            self._world.fail(0, f"{who} has counted {counted} copies, and must remember {copies}")

    def _since_us(self) -> int:
        """What was published since then must be remembered."""
        within, at_most = self._world.plan.copies_remembered
        newest_us = max(one.publish_us for one in self._world.oracle.sent.values())
        return newest_us + 1 if at_most < FEW or not within else newest_us - duration_us(within)
