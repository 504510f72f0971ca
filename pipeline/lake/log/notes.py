"""Small objects about the tracking log that are stored outside its folder.

`watermark.json` shows the newest decision to other systems. For tidemark itself, the log is the source of truth.
Several trackers may write the object, and its content never goes back: a tracker replaces only the generation that it
has read, and only with the content of a higher log entry. The record of the last signal to other systems follows the
same rule.

The log witness records the number of the log's last entry, before the entry's messages are acknowledged. If the log
ends before the recorded number, entries were lost from its end, which would otherwise go unnoticed.
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
"""Age at which `watermark.json` is rewritten even if nothing has changed, so that its readers see that decisions
continue."""

LANDED, ACKNOWLEDGED = "landed", "acknowledged"
"""The possible values of `promise` in `watermark.json`, about valid messages with an event time below the watermark.
LANDED: each of them is in this lake. ACKNOWLEDGED: each has been acknowledged at least once on the base subscription,
which another consumer reads."""

Written = Annotated[str, AfterValidator(lambda text: iso(datetime.fromisoformat(text)))]


@dataclass(frozen=True, slots=True)
class WatermarkContent:
    """The content of `watermark.json`."""

    watermark: Written | None
    """The watermark; null before the first one."""
    decided_at: Moment
    """Time of the newest decision."""
    reason: str | None
    """Reason of the newest decision (docs/reference/reasons.md)."""
    log_entry: int
    """Number of the newest log entry on which this content is based. A higher number means newer content."""
    sentence: str = ""
    """The newest decision as a sentence."""
    promise: str = LANDED
    """The promise about every valid message with an event time below the watermark: it is `landed` in this lake, or
    `acknowledged` by the reader of base."""
    rejected: int = 0
    """Number of messages that tracking has rejected since the log began. Redelivered messages are counted again,
    and lost log entries are not counted. The watermark promises nothing about rejected messages."""
    window_seconds: int | None = None
    """Length of a window in seconds."""


@dataclass(frozen=True, slots=True)
class ClosedWindows:
    """The windows that closed between two watermarks: the keys of the first and the last window, and the number of
    windows. The keys are None if no window closed."""

    first: str | None
    last: str | None
    count: int

    @classmethod
    def between(cls, since: datetime, until: datetime, windowing: Windowing) -> "ClosedWindows":
        """Return the windows that closed between two watermarks."""
        first, end = windowing.number_of(since), windowing.number_of(until)
        if first >= end:
            return cls(None, None, 0)
        return cls(windowing.numbered(first).key, windowing.numbered(end - 1).key, end - first)


@dataclass(frozen=True, slots=True)
class Sent(WatermarkContent):
    """A signal to other systems. It has the fields of `watermark.json`, and the name of the pipeline. `since` is the
    watermark of the previous signal, and `windows` are the windows that have closed since then.

    In the first signal, `since` and `windows` are None: all windows that end at or below the watermark are closed.
    """

    pipeline: str = ""
    since: Written | None = None
    windows: ClosedWindows | None = None


WATERMARK = JsonKind("", key="watermark", holds=WatermarkContent)
NAME = WATERMARK.name(WATERMARK.key)
SENT: JsonKind[WatermarkContent] = JsonKind("signal/", key="sent", holds=Sent)
"""Stores the last signal that was sent. The object's content equals the data of the sent message."""


class WatermarkObject:
    """The object `watermark.json` of one lake. An instance remembers the generation that it last read or wrote. Not
    thread-safe."""

    kind: JsonKind[WatermarkContent] = WATERMARK
    failed = f"{NAME}, which other systems read, was not written"

    def __init__(self, objects: ObjectStore, windowing: Windowing, *, attach: bool = False) -> None:
        self._notes = Notes(objects, self.kind)
        self._promise = ACKNOWLEDGED if attach else LANDED
        self._window_seconds = round(windowing.length.total_seconds())
        self._known: tuple[WatermarkContent, int] | None = None

    def tell(self, state: WatermarkState) -> str | None:
        """Rewrite `watermark.json` if the watermark or the reason has changed, or if the object is a minute old. If
        another tracker replaces the object first, do nothing; the next call then reads the new object.

        Makes at most one write, after one read if the object's generation is unknown. Each is attempted once, and takes
        two seconds at most. A failure is returned as a sentence, because the decision itself is durable already.
        """
        try:
            self._tell(state)
        except (LakeError, PubSubError) as error:
            self._known = None
            if not isinstance(error, ObjectReplaced):
                return f"{self.failed}: {error}"
        return None

    def _tell(self, state: WatermarkState) -> None:
        if (decision := state.decision) is None:
            return
        there, generation = self._known = self._known or self._read()
        watermark = None if state.watermark is None else iso(state.watermark)
        reason, sentence = str(decision.reason), decision.sentence()
        said = watermark, decision.at, reason, state.number, sentence, self._promise, state.rejected
        now = WatermarkContent(*said, self._window_seconds)
        is_old = abs(now.decided_at - there.decided_at) >= WRITTEN_AGAIN_AFTER
        if there.log_entry >= now.log_entry:
            if is_old and there.log_entry > now.log_entry:
                raise LakeError(
                    f"{self._notes.place(self.kind.key)} names log entry {there.log_entry}, but the log ends with "
                    f"{now.log_entry}; delete the object, and a tick will write a new one within two minutes"
                )
            return
        if is_old or (there.watermark, there.reason) != (now.watermark, now.reason):
            sent = self._sent(there, now)
            self._known = sent, self._notes.replace(self.kind.key, sent, generation)

    def _sent(self, there: WatermarkContent, now: WatermarkContent) -> WatermarkContent:  # noqa: ARG002 (`there` is for subclasses that send)
        """Return the content to write to the object. A subclass may first send it to another system."""
        return now

    def _read(self) -> tuple[WatermarkContent, int]:
        there, generation = self._notes.found(self.kind.key)
        return there or WatermarkContent(None, EPOCH, None, -1), generation


@dataclass(frozen=True, slots=True)
class Note:
    """Records that the log has the entry `number`. `watermark` is the watermark after that entry."""

    watermark: datetime | None
    number: Annotated[int, Field(exclude=True)] = -1


NOTED = JsonKind("log_witness/", key=r"\d{12}", holds=Note)
"""Stores the records of LogWitness. The key is the number of the log entry. The records are outside the folder
`tracking/`, and so survive a loss of that folder."""


class LogWitness:
    """A record of the number of the log's last entry, in objects outside of the log. Not thread-safe, but several
    instances may share the records."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, NOTED)
        self._own: str | None = None

    def newest_number(self) -> int:
        """Return the largest recorded entry number; -1 if nothing is recorded. Lists the records without reading
        them."""
        return max(map(int, self._notes.listed()), default=-1)

    def newest(self) -> Note | None:
        """Return the record with the largest entry number; None if nothing is recorded. A damaged record is returned
        without a watermark: its number is known from the object's name. Raises NewerFormat and LakeError."""
        if not (keys := self._notes.listed()):
            return None
        try:
            return replace(self._notes.read(keys[-1]), number=int(keys[-1]))
        except ObjectMissing:  # a writer has replaced the note by a newer one
            return self.newest()
        except DamagedNote:
            return Note(None, int(keys[-1]))

    def note(self, number: int, watermark: datetime | None) -> None:
        """Record that the log has the entry `number`, and delete the records of earlier entries."""
        key = f"{number:012d}"
        superfluous = [older for older in self._notes.listed() if older < key] if self._own is None else [self._own]
        self._notes.ensure(key, Note(watermark))
        self._notes.delete(*superfluous)
        self._own = key

    def accept_end(self, number: int) -> None:
        """Delete the records of log entries after `number`. Call this after an operator has accepted that these entries
        are lost."""
        self._notes.delete(*(key for key in self._notes.listed() if int(key) > number))


def end_at(last: int) -> str:
    """Return a phrase that says where a log ends. `last` is the number of its last entry, or -1 if it is empty."""
    return "is empty" if last < 0 else f"ends with entry {last}"


def lost_end(note: Note, last: int) -> str:
    """Return the error message for a log that lost entries from its end. `last` is the number of the log's last entry,
    and `note` is the newest record of LogWitness."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    return (
        f"the tracking log {end_at(last)}, but it once had entry {note.number}{reached}: its end is lost. "
        f"Restore a backup of tracking/log or, without a backup, run `tidemark repair --forget {last + 1}`: the "
        "watermark then holds until base has landed every message that the lost entries may have counted"
    )
