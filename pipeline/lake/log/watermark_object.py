"""`watermark.json`: the newest decision in one small object, for other systems. Nothing of tidemark reads the watermark
there: the log is the truth.

A tracker replaces only a generation of the object that it has read or written, and only if that one knows less of the
log. So the object never goes back, however many trackers there are.
"""

from dataclasses import dataclass
from datetime import timedelta

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.errors import LakeError, ObjectReplaced
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, ReplacedNotes
from tidemark.pipeline.lake.store.objects import ReplaceableObjects
from tidemark.pipeline.watermark.state import WatermarkState

WRITTEN_AGAIN_AFTER = timedelta(minutes=1)
"""An object that says the same is written again after as long, so that its readers see that decisions go on."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the object says: the outcome of the newest decision, and up to which entry the log was folded."""

    watermark: str | None
    decided_at: Moment
    reason: str | None
    log_entry: int
    sentence: str = ""


WATERMARK = JsonKind("", key="watermark", holds=Said)
NAME = WATERMARK.name(WATERMARK.key)


class WatermarkObject:
    """Writes the object of one lake. It remembers the generation that it knows: one user at a time."""

    def __init__(self, objects: ReplaceableObjects) -> None:
        self._notes = ReplacedNotes(objects, WATERMARK)
        self._known: tuple[Said, int] | None = None

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
        there, generation = self._known = self._known or self._read()
        watermark = None if state.watermark is None else iso(state.watermark)
        now = Said(watermark, decision.at, str(decision.reason), state.number, decision.sentence())
        is_old = abs(now.decided_at - there.decided_at) >= WRITTEN_AGAIN_AFTER
        if there.log_entry >= now.log_entry:
            if is_old and there.log_entry > now.log_entry:
                raise LakeError(
                    f"it knows entry {there.log_entry} of the log, which ends with entry {now.log_entry}; delete it"
                )
            return
        if is_old or (there.watermark, there.reason) != (now.watermark, now.reason):
            self._known = now, self._notes.replace(WATERMARK.key, now, generation)

    def _read(self) -> tuple[Said, int]:
        """What the object says, nothing if it is missing or damaged, and its generation. Raises NewerFormat."""
        there, generation = self._notes.found(WATERMARK.key)
        return there or Said(None, EPOCH, None, -1), generation
