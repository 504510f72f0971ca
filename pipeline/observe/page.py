"""The page: the facts of `tidemark status --json` and `tidemark explain --json` for a browser.

The lake is read in a separate thread, and only on request. A request waits briefly for the result. After that it is
answered with the previous result, so that an unreachable lake delays no request for long.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

from jinja2 import PackageLoader

from tidemark.pipeline.clock import EPOCH, Clock, is_recent, iso, rough
from tidemark.pipeline.errors import ObjectMissing, TidemarkError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import Lake, OpenLake
from tidemark.pipeline.lake.log.history import sampled, standing_before
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.observe.explained import (
    HOURS,
    explained,
    history_facts,
    in_order,
    lag_chart,
    landed_by_stream,
    plane_chart,
    read_by_stream,
    read_decided,
)
from tidemark.pipeline.observe.facts import LakeStatus, read_status
from tidemark.pipeline.observe.outlet import SCRIPT, STYLE
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.quality.failing import is_overdue, read_ticks
from tidemark.pipeline.quality.lost import untracked_sentence
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.page import TEMPLATES
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState

logger = logging.getLogger(__name__)

LOG_SECONDS, TABLES_SECONDS = 1.0, 30.0
"""Minimum number of seconds for which a result is reused: LOG_SECONDS for the tracking log, TABLES_SECONDS for the
lake's tables. A result is also reused for at least ten times as long as it took to read."""

WAIT_SECONDS = 2.0
"""Maximum number of seconds that a request waits for a read in progress."""

MOST_RECENT = 12_000
"""Maximum number of decisions that the page keeps, 2 KB each: 33 hours' worth with ticks of 10 s."""

FOLLOWS_FOR = timedelta(minutes=5)
"""If the last read of the tracking log is at most this old, the next one reads all entries since then. After a longer
time, the page starts again from the log's newest entries, which is cheaper."""

Found = TypeVar("Found")


class Looker(Generic[Found]):
    """Reads the lake in a separate thread on request, one read at a time, so that an unreachable lake does not block
    requests.

    `found` is the newest result, read at `found_at`. `problem` says why the last read failed. `since` is the start of
    the read in progress.
    """

    def __init__(self, look: Callable[[datetime], Found], good_for: float, clock: Clock) -> None:
        self.found: Found | None = None
        self.found_at: datetime | None = None
        self.since: datetime | None = None
        self.problem = ""
        self._look, self._good_for, self._clock = look, good_for, clock
        self._next_at = clock.monotonic()
        self._ended = Event()
        self._lock = Lock()

    def begin(self, now: datetime) -> None:
        """Start a read, unless one is in progress or the last result is still fresh."""
        with self._lock:
            if self.since is None and self._clock.monotonic() >= self._next_at:
                self.since = now
                self._ended.clear()
                Thread(target=self._run, args=(now,), name="page", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the read in progress, if there is one."""
        if self.since is not None:
            self._ended.wait(seconds)

    def problems(self, now: datetime) -> list[str]:
        """Return why the lake cannot be read: a read takes longer than WAIT_SECONDS, or the last one failed."""
        since = self.since
        if since is not None and now - since > timedelta(seconds=WAIT_SECONDS):
            return [f"the lake has not answered for {rough(now - since)}"]
        return [self.problem] if self.problem else []

    def _run(self, now: datetime) -> None:
        began = self._clock.monotonic()
        try:
            self.found, self.found_at, self.problem = self._look(now), now, ""
        except TidemarkError as error:
            self.problem = str(error)
        except Exception:
            logger.exception("the page cannot be rendered")
            self.problem = "the page cannot be rendered; the code server's log says why"
        with self._lock:
            self._next_at = began + max(self._good_for, 10 * (self._clock.monotonic() - began))
            self.since = None
            self._ended.set()


class Page:
    """Renders the HTML page of one pipeline, from the pipeline's lake and newest decisions. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.name = settings.pipeline_name
        self._settings, self._clock = settings, clock
        self._recent: deque[Decision] = deque(maxlen=MOST_RECENT)
        self._state, self._followed_at = WatermarkState(), EPOCH  # after the last entry read, and the time of the read
        self._shown: tuple[int, DecisionRecord, WatermarkState] | None = None
        """The newest decision, the number of its entry, and the state before it."""
        self._lakes = [OpenLake(settings.lake, settings.message.kinds, clock) for _ in range(3)]
        self._log = Looker(self._look_at_log, LOG_SECONDS, clock)
        self._tables = Looker(self._look_at_tables, TABLES_SECONDS, clock)
        self._cells_lock = Lock()
        self._rendered: dict[bool, tuple[datetime, bytes]] = {}

    def decided(self, decision: Decision) -> None:
        """Record a decision, unless it is already recorded."""
        if all(decision.at != one.at for one in tuple(self._recent)):
            self._recent.append(decision)

    def html(self, names: Sequence[str], health: Callable[[], list[str]], *, whole: bool) -> bytes:
        """Render the page (`whole`) or only its live part, at most once per second. `names` are the pipelines that have
        a page in this process. `health` returns the problems of these pipelines."""
        now = self._clock.now()
        made_at, content = self._rendered.get(whole, (EPOCH, b""))
        if not is_recent(made_at, now, timedelta(seconds=LOG_SECONDS)):
            self._log.begin(now)
            self._tables.begin(now)
            self._log.wait(WAIT_SECONDS)
            self._tables.wait(0 if self._tables.found else WAIT_SECONDS)
            content = self._made(names, health(), whole=whole)
            self._rendered[whole] = now, content
        return content

    def _made(self, names: Sequence[str], health: Sequence[str], *, whole: bool) -> bytes:
        now, status = self._clock.now(), self._tables.found
        found = self._log.found or {}
        why = found if "at" in found else None
        failing = [f"{self.name}: sensor {sensor}: " for sensor in found.get("failing", ())]  # `ticks` says why
        health = [problem for problem in health if not problem.startswith(tuple(failing))]
        problems = list(dict.fromkeys([*self._log.problems(now), *self._tables.problems(now), *health]))
        is_known = self._log.found_at is not None or bool(problems)
        shown = VIEW.get_template("page.html" if whole else "live.html").render(
            name=self.name,
            names=names,
            lake=self._settings.lake.uri,
            now=now,
            verdict=verdict_of(self._settings, found, status, problems, now) if is_known else LOOKING,
            facts={} if status is None else {**status.facts, **status.details},
            tables_at=self._tables.found_at,
            why=why,
            lag=None if why is None else lag_chart(why),
            plane=None if why is None else plane_chart(why["plane"]),
            every=int(min(max(self._settings.watermark.tick.total_seconds() / 2, 1), 10)),
            style=STYLE,
            script=SCRIPT,
        )
        return shown.encode()

    def cell(self, x: float, y: float, drawn_at: str) -> str:
        """Describe the chart's cell at the point (x, y), with the streams of the cell's landed rows. Empty if the point
        is in no cell, or if the chart has been redrawn since `drawn_at`."""
        if (plane := (self._log.found or {}).get("plane")) is None or iso(plane["at"]) != drawn_at:
            return ""
        chart, seconds = plane_chart(plane), plane["cell_seconds"]
        for start, event, count in plane["cells"]:  # noqa: B007 (the one that is found)
            left, top = chart.across(start), chart.up(event + seconds)
            width, height = chart.across(start + seconds) - left, chart.up(event) - top
            if left <= x <= left + max(width, 2) and top <= y <= top + max(height, 2):
                break
        else:
            return ""
        since, of, size = *(EPOCH + timedelta(seconds=each) for each in (start, event)), timedelta(seconds=seconds)
        published = f"At most {counted(count, 'message')} published within {rough(size)} from {iso(since)} on"
        said = f"{published}, with event times from {iso(of)} on."
        if not self._cells_lock.acquire(timeout=WAIT_SECONDS):
            return f"{said} Their streams are unknown: the lake did not answer in time."
        try:
            streams = landed_by_stream(self._lakes[2].heartbeats(), since, of, size)
        except TidemarkError as error:
            return printable(f"{said} {error}")
        finally:
            self._cells_lock.release()
        names = ", ".join(f"{stream} ({rows:,})" for stream, rows in streams.items())
        return printable(f"{said} Landed: {names}" if names else f"{said} None of them has landed.")

    def _look_at_log(self, now: datetime) -> Mapping[str, Any]:
        lake = self._lakes[0]
        log = lake.tracking_log()
        if self._shown is None or now - self._followed_at > FOLLOWS_FOR:
            if (found := read_decided(log)) is None:
                return self._ticks(lake, None, now)
            before = standing_before(log, found[0])
            self._state, self._shown = before.after(*found), (*found, before)
            parts = (sampled(log, found[0], found[1].decision.at - HOURS), self._recent)
            recent = {one.at: one for part in parts for one in in_order(part)}
            self._recent = deque([recent[at] for at in sorted(recent)], MOST_RECENT)
        self._follow(log)
        self._followed_at = now
        number, decided, before = self._shown
        _, facts = explained(number, decided, before)
        history = history_facts(list(self._recent), self._settings.watermark.tick, now)
        return {**facts, **history, **self._ticks(lake, decided.decision, now)}

    def _ticks(self, lake: Lake, decision: Decision | None, now: datetime) -> Mapping[str, Sequence[str]]:
        """Return sentences about failing ticks, and the names of the sensors that fail."""
        ticks = read_ticks(lake, self._settings, decision, now)
        return {"ticks": ticks.sentences, "failing": [one.sensor for one in ticks.failing]}

    def _follow(self, log: TrackingLog) -> None:
        """Read the rest of the tracking log, and record each new decision. Raises LakeError if that fails."""
        while True:
            number = self._state.number + 1
            try:
                entry = log.entry(number)
            except ObjectMissing:
                return
            if isinstance(entry, DecisionRecord):
                self._shown = number, entry, self._state
                self.decided(entry.decision)
            self._state = self._state.after(number, entry)

    def _look_at_tables(self, now: datetime) -> LakeStatus:
        if self._settings.pubsub.attach:  # nothing lands, so there are no tables
            return LakeStatus({}, {})
        lake = self._lakes[1]
        self._log.wait(WAIT_SECONDS)  # the streams must be those of the decision on the page
        shown = self._shown
        status = read_status(lake, self._settings, now, self._clock)
        _, streams = (None, {}) if shown is None else read_by_stream(lake, self._settings, shown[1])
        return replace(status, details={**status.details, **streams})


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """The state of the pipeline at a glance: a level (which sets the colour), a headline, and sentences."""

    level: str
    headline: str
    sentences: Sequence[str]


LOOKING = PageVerdict("new", "Reading the lake", ["The first read takes some seconds."])


def verdict_of(
    settings: Settings, why: Mapping[str, Any], status: LakeStatus | None, problems: Sequence[str], now: datetime
) -> PageVerdict:
    """Return the state of the pipeline at a glance.

    The level is `bad` if decisions are overdue, something fails or tracking lacks messages; `hold` if the watermark
    waits, pulling is behind, heartbeats are missing or figures are unknown; `new` if there is no decision yet; else
    `good`. `why` contains the facts that explain the newest decision, `status` the facts of the tables.
    """
    facts = {} if status is None else status.facts
    said = [*problems, *why.get("ticks", []), *([] if status is None else status.of_runs)]
    if facts.get("untracked"):
        said.append(untracked_sentence(facts["untracked"]))
    unknown = [fact for name, fact in facts.items() if name.endswith(("_unknown", "_not_checked"))]
    if "at" not in why:
        headline = "Something is wrong" if said else "No decision yet"
        return PageVerdict("bad" if said else "new", headline, said or ["The first tick of tracking makes one."])
    more = [*said, *unknown]
    sentences = [*more, f"{'The newest decision was ' if more else ''}{why['explanation'][0]}"]
    if is_overdue(why["at"], settings.watermark.tick, now):
        return PageVerdict("bad", f"No decision for {rough(now - why['at'])}", sentences)
    if said:
        return PageVerdict("bad", "Something is wrong", sentences)
    if held := next((hold for hold in why["holds"] if hold["until"] is None), None):
        lasted = f"{'at least ' if held['lasted'] > HOURS else ''}{rough(held['lasted'])}"
        return PageVerdict("hold", f"The watermark has stood still for {lasted}", sentences)
    if why["reason"].is_hold:
        return PageVerdict("hold", "The watermark waits" if why["watermark"] else "No watermark yet", sentences)
    if reading := facts.get("reading"):
        return PageVerdict("hold", reading.partition(":")[0].capitalize(), [reading, *sentences])
    if facts.get("missed") or facts.get("lost_at_least"):
        return PageVerdict("hold", "Live, but heartbeats are missing", sentences)
    if unknown:
        return PageVerdict("hold", "Live, but some figures are unknown", sentences)
    return PageVerdict("good", "All is well", sentences)


def after_end(seconds: float | None, state: str) -> str:
    """Format the time from a window's end until it was computed or, if it is not computed, until now. `seconds` is this
    time, negative before the window's end."""
    if seconds is None or state == "empty":
        return ""
    said = rough(timedelta(seconds=abs(seconds)))
    if seconds < 0:
        return f"ends in {said}"
    return said if state in ("computed", "stale") else f"{said} so far"


def today(text: str, now: datetime) -> str:
    """Remove the date from today's times in a text, except in commands, which are between backquotes."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace(f"{now:%Y-%m-%d}T", "") for number, part in enumerate(parts))


VIEW = TEMPLATES.overlay(loader=PackageLoader("tidemark.pipeline.observe"))
VIEW.filters |= {"after_end": after_end, "first_of": islice, "today": today}
VIEW.globals |= {"hours": HOURS}
