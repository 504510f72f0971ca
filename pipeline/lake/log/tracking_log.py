"""One numbered, create-only log of histogram snapshots and decisions: what restart, replay and charts read.

Who loses a number folds what took it, and takes the next one. So every decision was made with every entry before
it in view, whoever wrote them, and the log has no gaps. Old entries move to archives, from the first on up to a
compacted one: what is left is all that a restart needs.
"""

import logging
import uuid
from collections.abc import Callable
from datetime import datetime

from pipeline.errors import CorruptObject, LakeError, ObjectExists, ObjectMissing, TableConflict
from pipeline.lake.log.archive import FOLDER as ARCHIVES
from pipeline.lake.log.archive import LogArchive
from pipeline.lake.log.codec import decode, encode
from pipeline.lake.log.witness import LogWitness, lost_end
from pipeline.lake.store.objects import ObjectStore
from pipeline.watermark.state import Beginning, Compacted, DecisionRecord, Entry, Lost, WatermarkState

logger = logging.getLogger(__name__)

FOLDER = "tracking/log/"
SUFFIX = ".parquet"
DIGITS = 12
ATTEMPTS = 100
"""Numbers that may be lost in a row; more means that something else than another tracker is writing here."""


class TrackingLog:
    """The log and its live fold. One object has one user at a time; any number of objects may share the log.

    `state` is a cache: `catch_up` brings it up to the log, from nothing if need be.
    """

    def __init__(self, objects: ObjectStore, *, checkpoint_every: int) -> None:
        self._objects = objects
        self._archive = LogArchive(objects)
        self._witness = LogWitness(objects)
        self._is_compared = False
        self._checkpoint_every = checkpoint_every
        self._writer = uuid.uuid4().hex
        self._standing: WatermarkState | None = None

    def catch_up(self) -> WatermarkState:
        """Fold what others have written since, and return where the watermark stands.

        Raises CorruptObject for a damaged or missing entry; nothing may be pulled then, because what is pulled
        could not be judged against all that is known.
        """
        state = self._restored() if self._standing is None else self._standing
        while True:
            name = entry_name(state.number + 1)
            try:
                content = self._objects.read(name)
            except ObjectMissing:
                if not self._is_overtaken(state.number):
                    self._standing = state
                    return state
                state = self._restored()
                continue
            state = state.after(state.number + 1, decode(content, name))

    def catch_up_to_append(self) -> WatermarkState:
        """Like `catch_up`, for a caller that goes on to append: raises CorruptObject also if the log's end is lost."""
        noted = self._witness.newest_number()  # before the log is listed: what was noted is in it by then
        state = self.catch_up()
        note = self._witness.newest() if noted > state.number else None
        if note is not None:
            raise CorruptObject(lost_end(note, state.number))
        self._is_compared = True
        return state

    def watermark_noted(self) -> datetime | None:
        """The watermark that was last noted outside of the log; None if no note says one."""
        note = self._witness.newest()
        return None if note is None else note.watermark

    def begin(self, beginning: Beginning) -> WatermarkState:
        """Write the first entry, unless another tracker already has. (Where that one was lost, a later one does.)"""
        return self._append(lambda state: beginning if state.complete_from is None else None)

    def append(self, entry: Entry) -> WatermarkState:
        """Make an entry durable, under whatever number comes next."""
        return self._append(lambda _: entry)

    def decide(self, decide: Callable[[WatermarkState], DecisionRecord]) -> WatermarkState:
        """Decide on everything that the log holds, and make the decision its next entry."""
        return self._append(decide)

    def compact_if_due(self) -> WatermarkState:
        """Every so many entries, write one that holds all before it."""
        every = self._checkpoint_every
        return self._append(lambda state: Compacted(state) if state.number - state.checkpoint >= every else None)

    def newest_decision(self) -> DecisionRecord | None:
        """The newest decision alone, without the histogram: cheap for whoever only asks where the watermark is."""
        for number in reversed(self.live_numbers()):
            entry = decode(self._live_content(number), entry_name(number))
            if isinstance(entry, DecisionRecord):
                return entry
            if isinstance(entry, Compacted):
                return entry.state.decided
        return None

    def entry(self, number: int) -> Entry:
        """One entry, wherever it is by now. Raises ObjectMissing or CorruptObject."""
        return decode(self.content(number), entry_name(number))

    def content(self, number: int) -> bytes:
        """One entry as it was written. Raises ObjectMissing or CorruptObject."""
        return self._archive.content(number) or self._live_content(number)

    def numbers(self) -> list[int]:
        """The numbers of the entries that are there, archived ones too, in order."""
        live = self.live_numbers()  # first: what moves to an archive meanwhile is seen there
        archived = (number for stretch in self._archive.stretches() for number in stretch.numbers)
        return sorted({*archived, *live})

    def live_numbers(self) -> list[int]:
        """The numbers of the entries that stand in the log itself, in order."""
        return sorted(
            int(name.removeprefix(FOLDER).removesuffix(SUFFIX))
            for name in self._objects.names(FOLDER)
            if name.removeprefix(FOLDER).removesuffix(SUFFIX).isdigit()
        )

    def forget(self, number: int, what: str, watermark_at_least: datetime | None = None) -> None:
        """Put a note of the loss in the place of an entry that is beyond repair. Assumption: no tracker runs.

        The entry may have been the newest decision, so `watermark_at_least` says how far the watermark is known to
        have come from outside of the log: it does not go back below that. Raises LakeError for an entry that has moved
        to an archive: no tracker needs it.
        """
        if self._archive.covers(number):
            raise LakeError(
                f"entry {number} is in an archive under {self._objects.uri}/{ARCHIVES}, which no tracker needs: put "
                "back a copy of that, or move it away"
            )
        note = encode(Lost(what, watermark_at_least), self._writer)
        self._objects.delete(entry_name(number))
        self._objects.create(entry_name(number), note)
        self._witness.accept_end(max(self.numbers()))
        self._standing = None

    def _append(self, build: Callable[[WatermarkState], Entry | None]) -> WatermarkState:
        for _ in range(ATTEMPTS):
            state = self.catch_up() if self._is_compared else self.catch_up_to_append()
            entry = build(state)
            if entry is None:
                return state
            number = state.number + 1
            try:
                self._objects.create(entry_name(number), encode(entry, self._writer))
            except ObjectExists:
                continue
            if self._archive.covers(number):
                # Its number was free because others had long taken it, and it was archived since we looked.
                self._objects.delete(entry_name(number))
                self._standing = None
                continue
            self._standing = state.after(number, entry)
            self._witness.note(number, self._standing.watermark)
            return self._standing
        raise TableConflict(
            f"{self._objects.uri}/{FOLDER} gave {ATTEMPTS} numbers in a row to other writers; stop the trackers that "
            "should not run against this lake"
        )

    def _live_content(self, number: int) -> bytes:
        """One entry that was in the log a moment ago: it may have moved to an archive since."""
        try:
            return self._objects.read(entry_name(number))
        except ObjectMissing:
            archived = self._archive.content(number) if self._archive.covers(number) else None
            if archived is None:
                raise
            return archived

    def _is_overtaken(self, number: int) -> bool:
        """Whether the last entry that was folded has moved to an archive, and others after it.

        Raises CorruptObject if it is lost: nothing may be appended to what is not there.
        """
        if number < 0:
            return bool(self._archive.stretches())
        try:
            self._objects.read(entry_name(number))
        except ObjectMissing:
            if self._archive.covers(number):
                return True
            raise self._gap(number) from None
        return False

    def _gap(self, number: int) -> CorruptObject:
        return CorruptObject(
            f"{self._objects.uri}/{entry_name(number)} is missing from the tracking log; put back a backup, or "
            f"run `tidemark forget {number}`: the watermark then holds until base has caught up"
        )

    def _restored(self) -> WatermarkState:
        """The fold from the newest compacted entry (or the beginning) on, checked to have no gaps."""
        numbers = self.live_numbers()
        if not numbers:
            return WatermarkState()
        entries: list[tuple[int, Entry]] = []
        present = set(numbers)
        for number in range(numbers[-1], -1, -1):
            if number not in present:
                raise self._gap(number)
            entries.append((number, decode(self._live_content(number), entry_name(number))))
            if isinstance(entries[-1][1], Compacted):
                break
        state = WatermarkState()
        for number, entry in reversed(entries):
            state = state.after(number, entry)
        logger.info("restored the histogram from entries %d to %d", entries[-1][0], numbers[-1])
        return state


def entry_name(number: int) -> str:
    """The object that holds an entry."""
    return f"{FOLDER}{number:0{DIGITS}d}{SUFFIX}"
