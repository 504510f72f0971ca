"""The page: what `tidemark status --json` and `tidemark explain --json` say, for a browser.

A look at the lake happens in a thread of its own, and only when somebody asks. A request waits for it for a moment and
is otherwise answered from the look before, so that a lake that does not answer delays nobody.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from threading import Event, Lock, Thread
from typing import Any

from jinja2 import PackageLoader
from markupsafe import Markup

from tidemark.pipeline.clock import EPOCH, Clock, iso
from tidemark.pipeline.durations import rough
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.lake.log.history import sampled
from tidemark.pipeline.observe.explained import landed_by_stream, read_explained
from tidemark.pipeline.observe.facts import LakeStatus, read_status
from tidemark.pipeline.observe.plane import HOURS, lag_chart, plane_chart
from tidemark.pipeline.observe.serving import SCRIPT, STYLE
from tidemark.pipeline.printable import printable
from tidemark.pipeline.quality.failing import TICKS_MISSED
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.page import TEMPLATES
from tidemark.pipeline.watermark.decision import Decision

logger = logging.getLogger(__name__)

FRESH_SECONDS, WAIT_SECONDS = 1.0, 2.0
"""A look is good for this long, and for ten times as long as it took; a request waits for a new one at most so long."""

MOST_RECENT = 12_000
"""Decisions that are remembered: three hours of a tick a second."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found: the facts of the lake and of the newest decision, if there is one; or the sentence why there
    are none."""

    at: datetime
    took: float = 0.0
    status: LakeStatus | None = None
    why: Mapping[str, Any] | None = None
    problem: str = ""


NEVER = Look(EPOCH)


class Page:
    """The page of one pipeline. Safe from several threads: one at a time looks at the lake."""

    def __init__(self, settings: Settings, clock: Clock, name: str) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock
        self._recent: deque[Decision] = deque(maxlen=MOST_RECENT)
        self._is_filled = False
        self._lake: OpenLake | None = None
        self._last = self._good = NEVER
        self._looking_since: datetime | None = None
        self._looked = Event()
        self._lock, self._lake_lock = Lock(), Lock()
        self._rendered: dict[bool, tuple[float, bytes]] = {}

    def decided(self, decision: Decision) -> None:
        """Remember a decision that a tick made."""
        self._recent.append(decision)

    def html(self, names: Sequence[str], problems: Callable[[], list[str]], *, whole: bool) -> bytes:
        """The page, or only what changes in it, made anew at most every FRESH_SECONDS. `names` are the pipelines that
        have one here, and `problems` what is wrong with the sensors."""
        made_at, content = self._rendered.get(whole, (-FRESH_SECONDS, b""))
        if self._clock.monotonic() - made_at >= FRESH_SECONDS:
            content = self._made(names, problems(), whole=whole)
            self._rendered[whole] = self._clock.monotonic(), content
        return content

    def _made(self, names: Sequence[str], problems: list[str], *, whole: bool) -> bytes:
        self._look_again()
        now, good, since = self._clock.now(), self._good, self._looking_since
        if since is not None:
            problems.insert(0, f"the lake has not answered for {rough(now - since)}")
        elif self._last.problem:
            problems.insert(0, self._last.problem)
        status, why = good.status, good.why
        plane = None if why is None or why["plane"] is None else plane_chart(why["plane"])
        shown = VIEW.get_template("page.html" if whole else "live.html").render(
            name=self.name,
            names=names,
            lake=self._settings.lake.uri,
            now=now,
            taken_at=None if status is None else good.at,
            verdict=verdict_of(self._settings, good, problems, now),
            facts={} if status is None else {**status.facts, **status.details},
            why=why,
            lag=None if why is None else lag_chart(why),
            plane=plane,
            every=int(min(max(self._settings.watermark.tick.total_seconds() / 2, 1), 10)),
            style=Markup(STYLE),  # noqa: S704 (our own files)
            script=Markup(SCRIPT),  # noqa: S704
        )
        return shown.encode()

    def cell(self, x: float, y: float, drawn_at: str) -> str:
        """What is in the cell at this point of the drawing, in words, with its streams where they have landed. Empty
        where there is none, and where the plane has been drawn anew."""
        plane, lake = (self._good.why or {}).get("plane"), self._lake
        if plane is None or lake is None or iso(plane["at"]) != drawn_at:
            return ""
        chart, size = plane_chart(plane), timedelta(seconds=plane["cell_seconds"])
        (squares,) = {heat.size for heat in chart.heat} or {0}
        for start, event, count in plane["cells"]:  # noqa: B007 (the one that is found)
            left, top = chart.across(start), chart.up(event + squares)
            width, height = chart.across(start + squares) - left, chart.up(event) - top
            if left <= x <= left + max(width, 2) and top <= y <= top + max(height, 2):
                break
        else:
            return ""
        since, of = EPOCH + timedelta(seconds=start), EPOCH + timedelta(seconds=event)
        said = f"At most {count:,} published within {rough(size)} of {iso(since)}, with event times from {iso(of)} on."
        if not self._lake_lock.acquire(timeout=WAIT_SECONDS):
            return f"{said} The lake is being read; ask again for their streams."
        try:
            streams = landed_by_stream(lake.heartbeats(), since, of, size)
        except TidemarkError as error:
            return printable(f"{said} {error}")
        finally:
            self._lake_lock.release()
        names = ", ".join(f"{stream} ({rows:,})" for stream, rows in streams.items())
        return printable(f"{said} Landed: {names}" if names else f"{said} None of them has landed.")

    def _look_again(self) -> None:
        """Begin a look unless one is under way or the last is good enough, and wait for it, but not for long."""
        with self._lock:
            now = self._clock.now()
            good_for = max(FRESH_SECONDS, 10 * self._last.took)
            if self._looking_since is None and now - self._last.at >= timedelta(seconds=good_for):
                self._looking_since, self._looked = now, Event()
                Thread(target=self._look, args=(now,), name="page", daemon=True).start()
            looked = self._looked if self._looking_since is not None else None
        if looked is not None:
            looked.wait(WAIT_SECONDS)

    def _look(self, now: datetime) -> None:
        began, problem = self._clock.monotonic(), ""
        found: tuple[LakeStatus | None, Mapping[str, Any] | None] = None, None
        try:
            with self._lake_lock:
                found = self._read(now)
        except TidemarkError as error:
            problem = str(error)
        except Exception:
            logger.exception("the page cannot be made")
            problem = "the page cannot be made; the code server's log says why"
        look = Look(now, self._clock.monotonic() - began, *found, problem)
        with self._lock:
            self._last, self._good = look, self._good if problem else look
            self._looking_since = None
            self._looked.set()

    def _read(self, now: datetime) -> tuple[LakeStatus, Mapping[str, Any] | None]:
        if self._lake is None:
            self._lake = OpenLake(self._settings.lake, self._settings.message.kinds, self._clock)
        status, log = read_status(self._lake, self._settings, now, self._clock), self._lake.tracking_log()
        state = log.catch_up()
        if state.decision is None:
            return status, None
        if not self._is_filled:  # what was decided before this process began
            self._recent.extendleft(reversed(sampled(log, state.number, now - HOURS)))
            self._is_filled = True
        self._recent.append(state.decision)  # another process may have made it
        recent = {one.at: one for one in self._recent.copy()}
        explained = read_explained(self._lake, self._settings, now, recent=[recent[at] for at in sorted(recent)])
        return status, None if explained is None else explained.facts


@dataclass(frozen=True, slots=True)
class Verdict:
    """How things stand: the colour, a headline, and sentences."""

    level: str
    headline: str
    sentences: Sequence[str]


def verdict_of(settings: Settings, look: Look, problems: Sequence[str], now: datetime) -> Verdict:
    """All is well, or what is not: `bad` where nobody decides or something fails, `hold` where the watermark waits."""
    status, why = look.status, look.why
    said = [*problems, *(() if status is None else status.warnings)]
    if why is None:
        headline = "Something is wrong" if said else "No decision yet"
        return Verdict("bad" if said else "new", headline, said or ["The first tick of tracking decides."])
    told = [*said, str(why["explanation"][0])]
    if now - why["at"] > TICKS_MISSED * settings.watermark.tick:
        return Verdict("bad", f"Nobody has decided for {rough(now - why['at'])}", told)
    if said:
        return Verdict("bad", "Something is wrong", told)
    held = next((hold for hold in why["holds"] if hold["until"] is None), None)
    if held is not None:
        return Verdict("hold", f"The watermark has stood still for {rough(held['lasted'])}", told)
    facts = {} if status is None else status.facts
    if facts.get("missed") or facts.get("lost_at_least"):
        return Verdict("hold", "Live, and heartbeats are missing", told)
    return Verdict("good", "All is well", told)


def after_end(seconds: float | None, state: str) -> str:
    """How long after its end a window was computed, or how long ago it ended, or in how long it does."""
    if seconds is None or state == "empty":
        return ""
    said = rough(timedelta(seconds=abs(seconds)))
    if seconds < 0:
        return f"ends in {said}"
    return said if state in ("computed", "stale") else f"{said} so far"


VIEW = TEMPLATES.overlay(loader=PackageLoader("tidemark.pipeline.observe"))
VIEW.filters |= {"after_end": after_end, "first_of": islice}
VIEW.globals |= {"hours": HOURS}
