"""`watermark.json`: the newest decision in one small object, for other systems. Nothing of tidemark reads the watermark
there: the log is the truth.

A tracker replaces only a generation of the object that it has read or written, and only if that one knows less of the
log. So the object never goes back, however many trackers there are.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.errors import LakeError, ObjectMissing, ObjectReplaced
from tidemark.pipeline.lake.store.objects import ReplaceableObjects
from tidemark.pipeline.version import marks, refuse_newer
from tidemark.pipeline.watermark.state import WatermarkState

NAME = "watermark.json"

WRITTEN_AGAIN_AFTER = timedelta(minutes=1)
"""An object that says the same is written again after as long, so that its readers see that decisions go on."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the object says, as far as a writer needs it: up to which entry the log was folded, and the outcome."""

    log_entry: int = -1
    watermark: str | None = None
    reason: str | None = None
    decided_at: datetime = EPOCH


class WatermarkObject:
    """Writes the object of one lake. It remembers the generation that it knows: one user at a time."""

    def __init__(self, objects: ReplaceableObjects) -> None:
        self._objects = objects
        self._known: tuple[int, Said] | None = None

    def tell(self, state: WatermarkState) -> str | None:
        """Replace the object if the state has another watermark or reason, or the object is a minute old.

        One write at most, after at most one read where the generation is not known. Both try once, for two seconds.
        Returns a failure as a sentence and raises no LakeError, because the decision itself is durable. If another
        tracker was faster, the next call looks at what that one wrote.
        """
        try:
            self._tell(state)
        except LakeError as error:
            self._known = None
            if not isinstance(error, ObjectReplaced):
                return f"{NAME}, which other systems read, was not written: {error}"
        return None

    def _tell(self, state: WatermarkState) -> None:
        decision = state.decision
        if decision is None:
            return
        generation, there = self._known = self._known or self._read()
        watermark = None if state.watermark is None else iso(state.watermark)
        now = Said(state.number, watermark, str(decision.reason), decision.at)
        is_old = abs(now.decided_at - there.decided_at) >= WRITTEN_AGAIN_AFTER
        if there.log_entry >= now.log_entry:
            if is_old and there.log_entry > now.log_entry:
                raise LakeError(
                    f"it knows entry {there.log_entry} of the log, which ends with entry {now.log_entry}; delete it"
                )
            return
        if is_old or (there.watermark, there.reason) != (now.watermark, now.reason):
            facts = {
                "watermark": watermark,
                "decided_at": iso(decision.at),
                "reason": now.reason,
                "sentence": decision.sentence(),
                "log_entry": now.log_entry,
                **marks(),
            }
            content = json.dumps(facts).encode() + b"\n"
            self._known = self._objects.replace(NAME, content, generation), now

    def _read(self) -> tuple[int, Said]:
        """The generation that is there and what it says: nothing if it is missing or damaged. Raises NewerFormat."""
        try:
            content, generation = self._objects.read_generation(NAME)
        except ObjectMissing:
            return 0, Said()
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            facts = json.loads(content)
            refuse_newer(f"{self._objects.uri}/{NAME}", facts)
            at = datetime.fromisoformat(facts["decided_at"]).astimezone(UTC)
            return generation, Said(int(facts["log_entry"]), facts["watermark"], facts["reason"], at)
        return generation, Said()
