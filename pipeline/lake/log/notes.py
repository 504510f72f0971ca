"""Notes about the tracking log, kept outside its folder.

`watermark.json` shows the newest decision to other systems; for tidemark, the log is the source of truth. Any number of
trackers may write the object, and its content never goes back: a tracker replaces only a generation that it knows, and
only with a higher log entry. The note about the last signal sent to other systems follows the same rule.

The log witness notes the log's last entry, before the messages of the entry are acknowledged. A note beyond the log's
end reveals that entries were lost from the end, where a loss leaves no gap.
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
"""Maximum age of `watermark.json`. An unchanged object is rewritten then, so that its readers see that decisions
continue."""

LANDED, ACKNOWLEDGED = "landed", "acknowledged"
"""The two possible promises about valid messages with an event time below the watermark: each has landed in this lake,
or each has been acknowledged at least once by the reader of base."""

Written = Annotated[str, AfterValidator(lambda text: iso(datetime.fromisoformat(text)))]
"""A moment as text, in the format of `iso`."""


@dataclass(frozen=True, slots=True)
class Said:
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
    """Upper bound on the number of messages that tracking rejected since the log began: a copy counts again. The
    watermark promises nothing about rejected messages."""
    window_seconds: int | None = None
    """Length of a window in seconds."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The windows that closed between two watermarks: the key of the first, the key of the last, and their number. Both
    keys are None if no window closed."""

    first: str | None
    last: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Sent(Said):
    """A signal to other systems: the fields of `watermark.json`, the pipeline's name, the watermark of the previous
    signal (`since`), and the `windows` that have closed since then. In the first signal, `since` and `windows` are
    None: all windows that end at or below the watermark are closed."""

    pipeline: str = ""
    since: Written | None = None
    windows: Closed | None = None


WATERMARK = JsonKind("", key="watermark", holds=Said)
NAME = WATERMARK.name(WATERMARK.key)
SENT: JsonKind[Said] = JsonKind("signal/", key="sent", holds=Sent)
"""The note about the last signal sent. Its content equals the data of the sent message."""


class WatermarkObject:
    """The writer of `watermark.json` in one lake. It remembers the object's last known generation. Only one thread may
    use it at a time."""

    kind: JsonKind[Said] = WATERMARK
    failed = f"{NAME}, which other systems read, was not written"

    def __init__(self, objects: ObjectStore, windowing: Windowing, promise: str = LANDED) -> None:
        self._notes = Notes(objects, self.kind)
        self._promise, self._window_seconds = promise, round(windowing.length.total_seconds())
        self._known: tuple[Said, int] | None = None

    def tell(self, state: WatermarkState) -> str | None:
        """Replace `watermark.json` if the state has another watermark or reason, or if the object is a minute old.

        Makes at most one read (if the generation is unknown) and one write. Each is tried once, for two seconds. A
        failure is returned as a sentence instead of a LakeError or PubSubError, because the decision itself is durable.
        If another tracker has replaced the object first, the call does nothing; the next call reads the new object.
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
                    f"the object has log entry {there.log_entry}, but the log ends with entry {now.log_entry}; delete "
                    "the object"
                )
            return
        if is_old or (there.watermark, there.reason) != (now.watermark, now.reason):
            told = self._sent(there, now)
            self._known = told, self._notes.replace(self.kind.key, told, generation)

    def _sent(self, there: Said, now: Said) -> Said:  # noqa: ARG002 (what was said before is for those who send)
        """Return the content to write. A subclass may send the content to another system first."""
        return now

    def _read(self) -> tuple[Said, int]:
        """Return the object's content and generation. The content has no watermark, and entry number -1, if the object
        is missing or damaged. Raises NewerFormat."""
        there, generation = self._notes.found(self.kind.key)
        return there or Said(None, EPOCH, None, -1), generation


@dataclass(frozen=True, slots=True)
class Note:
    """A note that the log has an entry with this `number`, and the watermark as of that entry."""

    watermark: datetime | None
    number: Annotated[int, Field(exclude=True)] = -1


NOTED = JsonKind("log_witness/", key=r"\d{12}", holds=Note)
"""A note about the log's end. Its key is an entry number. The notes are outside the folder `tracking/`, so that they
survive a loss of that folder."""


class LogWitness:
    """The notes about the end of one log. Only one thread may use an instance at a time; any number of instances may
    share the notes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, NOTED)
        self._own: str | None = None

    def newest_number(self) -> int:
        """Return the largest noted entry number; -1 without a note. Lists the notes but reads none of them."""
        return max(map(int, self._notes.listed()), default=-1)

    def newest(self) -> Note | None:
        """Return the note with the largest entry number; None without a note. If the note is damaged, return its
        number, which is in the object's name, without a watermark. Raises NewerFormat."""
        keys = self._notes.listed()
        if not keys:
            return None
        try:
            return replace(self._notes.read(keys[-1]), number=int(keys[-1]))
        except ObjectMissing:  # a writer has replaced the note by a newer one
            return self.newest()
        except DamagedNote:
            return Note(None, int(keys[-1]))

    def note(self, number: int, watermark: datetime | None) -> None:
        """Write a note that the log has this entry, and delete the notes about earlier entries."""
        key = f"{number:012d}"
        superfluous = [older for older in self._notes.listed() if older < key] if self._own is None else [self._own]
        self._notes.ensure(key, Note(watermark))
        self._notes.delete(*superfluous)
        self._own = key

    def accept_end(self, number: int) -> None:
        """Delete the notes about entries after `number`, because an operator has accepted that they are lost."""
        self._notes.delete(*(key for key in self._notes.listed() if int(key) > number))


def lost_end(note: Note, last: int) -> str:
    """Return the message for a log whose last entry, `last`, is before the entry in its newest note."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    ends = "is empty" if last < 0 else f"ends with entry {last}"
    return (
        f"the tracking log {ends}, but it once had entry {note.number}{reached}: its end is lost. Restore a backup of "
        f"tracking/log or, without a backup, run `tidemark repair --forget {last + 1}`: the watermark then holds "
        "until base has landed every message that the lost entries may have counted"
    )
