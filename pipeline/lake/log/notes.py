"""Notes about the tracking log, outside its folder: the newest decision for other systems, and the log's known end.

`watermark.json` is the newest decision in one small object. Tidemark itself never reads the watermark from there: the
log is the source of truth. A tracker replaces only a generation of the object that it has read or written, and only if
that generation has a lower log entry. So the object never goes back, however many trackers run. The same rule applies
to the note of the last signal sent to other systems.

Entries lost from the log's end leave no gap in it. So a writer notes each entry once it is durable, and only then
acknowledges: a note beyond the log's end reveals a loss.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.errors import DamagedNote, LakeError, ObjectMissing, ObjectReplaced, PubSubError
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.pipeline.windows import Windowing

WRITTEN_AGAIN_AFTER = timedelta(minutes=1)
"""An unchanged object is rewritten after this time, so that its readers see that decisions continue."""

LANDED, ACKNOWLEDGED = "landed", "acknowledged"
"""The two promises about every valid message with an event time below the watermark: it has landed in this lake, or
base's reader has acknowledged it at least once."""

Written = Annotated[str, AfterValidator(lambda text: iso(datetime.fromisoformat(text)))]
"""A moment as text, in the form of `iso`."""


@dataclass(frozen=True, slots=True)
class Said:
    """The content of `watermark.json`."""

    watermark: Written | None
    """The watermark; null until there is one."""
    decided_at: Moment
    """Time of the newest decision."""
    reason: str | None
    """Reason of the newest decision (docs/reference/reasons.md)."""
    log_entry: int
    """Number of the newest log entry that the content is based on. A higher number means newer content."""
    sentence: str = ""
    """The decision in a sentence."""
    promise: str = LANDED
    """State of every valid message with an event time below the watermark: `landed` in this lake, or `acknowledged` by
    whoever reads base."""
    rejected: int = 0
    """Number of messages that tracking rejected by the contract since the log began: an upper bound, since copies count
    again. The watermark promises nothing about them."""
    window_seconds: int | None = None
    """Length of windows, in seconds."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The windows closed between two watermarks: the keys of the first and the last (None if there are none), and their
    number."""

    first: str | None
    last: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Sent(Said):
    """A signal: the object's content, the pipeline's name, the `windows` closed since the previous signal, and that
    signal's watermark (`since`). In the first signal both are None: all windows that end at or below the watermark are
    closed."""

    pipeline: str = ""
    since: Written | None = None
    windows: Closed | None = None


WATERMARK = JsonKind("", key="watermark", holds=Said)
NAME = WATERMARK.name(WATERMARK.key)
SENT: JsonKind[Said] = JsonKind("signal/", key="sent", holds=Sent)
"""The note of the last signal sent. It equals the data of the sent message."""


class WatermarkObject:
    """Writes the `watermark.json` of one lake, and remembers its last known generation. One user at a time."""

    kind: JsonKind[Said] = WATERMARK
    failed = f"{NAME}, which other systems read, was not written"

    def __init__(self, objects: ObjectStore, windowing: Windowing, promise: str = LANDED) -> None:
        self._notes = Notes(objects, self.kind)
        self._promise, self._window_seconds = promise, round(windowing.length.total_seconds())
        self._known: tuple[Said, int] | None = None

    def tell(self, state: WatermarkState) -> str | None:
        """Replace the object if the state has another watermark or reason, or the object is a minute old.

        Makes at most one write, after at most one read if the generation is unknown. Both try once, for two seconds.
        Returns a failure as a sentence and raises no LakeError or PubSubError, because the decision itself is durable.
        If another tracker was faster, the next call reads its version.
        """
        try:
            self._tell(state)
        except (LakeError, PubSubError) as error:
            self._known = None
            if not isinstance(error, ObjectReplaced):
                return f"{self.failed}: {error}"
        return None

    def _tell(self, state: WatermarkState) -> None:
        decision = state.decision
        if decision is None:
            return
        there, generation = self._known = self._known or self._read()
        watermark = None if state.watermark is None else iso(state.watermark)
        reason, sentence = str(decision.reason), decision.sentence()
        said = watermark, decision.at, reason, state.number, sentence, self._promise, state.rejected
        now = Said(*said, self._window_seconds)
        is_old = abs(now.decided_at - there.decided_at) >= WRITTEN_AGAIN_AFTER
        if there.log_entry >= now.log_entry:
            if is_old and there.log_entry > now.log_entry:
                raise LakeError(
                    f"it has log entry {there.log_entry}, but the log ends with entry {now.log_entry}; delete it"
                )
            return
        if is_old or (there.watermark, there.reason) != (now.watermark, now.reason):
            told = self._sent(there, now)
            self._known = told, self._notes.replace(self.kind.key, told, generation)

    def _sent(self, there: Said, now: Said) -> Said:  # noqa: ARG002 (what was said before is for those who send)
        """Return the content to note. A subclass first sends it elsewhere."""
        return now

    def _read(self) -> tuple[Said, int]:
        """Return the object's content and generation; an empty content if it is missing or damaged. Raises
        NewerFormat."""
        there, generation = self._notes.found(self.kind.key)
        return there or Said(None, EPOCH, None, -1), generation


@dataclass(frozen=True, slots=True)
class Note:
    """A note that the log has reached the entry `number`, with the watermark at that entry."""

    watermark: datetime | None
    number: Annotated[int, Field(exclude=True)] = -1


NOTED = JsonKind("log_witness/", key=r"\d{12}", holds=Note)
"""The notes of the log's end. A key is an entry number. The notes are outside `tracking/`, so that they survive the
loss of that folder."""


class LogWitness:
    """Writes and reads the notes of one log's end. An instance has one user at a time; any number of instances may
    share the notes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, NOTED)
        self._own: str | None = None

    def newest_number(self) -> int:
        """Return the largest noted number; -1 without a note. Lists the notes and reads none."""
        return max(map(int, self._notes.listed()), default=-1)

    def newest(self) -> Note | None:
        """Return the note with the largest number. A damaged note still gives its number, which is in its name. Raises
        NewerFormat."""
        keys = self._notes.listed()
        if not keys:
            return None
        try:
            return replace(self._notes.read(keys[-1]), number=int(keys[-1]))
        except ObjectMissing:  # a writer has replaced it by a newer one
            return self.newest()
        except DamagedNote:
            return Note(None, int(keys[-1]))

    def note(self, number: int, watermark: datetime | None) -> None:
        """Note that the log has this entry, and delete the superseded notes."""
        key = f"{number:012d}"
        superfluous = [older for older in self._notes.listed() if older < key] if self._own is None else [self._own]
        self._notes.ensure(key, Note(watermark))
        self._notes.delete(*superfluous)
        self._own = key

    def accept_end(self, number: int) -> None:
        """Delete the notes beyond this entry, after an operator has accepted the loss."""
        self._notes.delete(*(key for key in self._notes.listed() if int(key) > number))


def lost_end(note: Note, last: int) -> str:
    """Return the message for a log that ends before its newest note."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    ends = "is empty" if last < 0 else f"ends with entry {last}"
    return (
        f"the tracking log {ends}, and it had entry {note.number}{reached}: its end is lost. Restore a backup of "
        f"tracking/log or, without one, run `tidemark repair --forget {last + 1}`: the watermark then holds "
        "until base has landed everything that the lost entries may have known"
    )
