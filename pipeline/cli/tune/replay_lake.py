"""`tidemark replay --from-lake`: recorded decisions verified, or decided again under another policy."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from tidemark.pipeline.cli.here import here, no_decision
from tidemark.pipeline.cli.options import since_when
from tidemark.pipeline.cli.output import WARNING, console, print_json, progress_bar, safe, text_of
from tidemark.pipeline.cli.tune.replay_views import differing, facts_of, print_difference, sentences_of
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.replay.log_ticks import LakeLandings, recorded_ticks
from tidemark.pipeline.replay.outcome import Replayed, replayed, write_decisions
from tidemark.pipeline.replay.replay import Tick, Verification, decide_again, verify
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.rules import RULES, Rule


def from_lake(
    since: timedelta | datetime | None,
    given: Mapping[str, Any],
    rules: Sequence[Rule],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Verify the recorded decisions. With `given` settings of the policy or other rules, decide again under them.

    The exit code is 1 if a recorded decision does not follow from what is recorded before it.
    """
    at = here()
    settings, lake = at.settings, at.lake
    log = lake.tracking_log()
    newest = log.newest_decision()
    if newest is None:
        raise no_decision(settings)
    state, ticks = recorded_ticks(log, since_when(since, at.clock.now()))
    first = next(ticks, None)
    if first is None:
        raise LakeError(
            f"the log of {settings.lake.uri} holds no decision after its newest compacted entry before --since; the "
            f"newest was made at {iso(newest.decision.at)}, so give an earlier time, or none"
        )
    begins_with_the_log = state.number < 0  # else decisions before the first tick told what was late until then
    landings = LakeLandings(lake.heartbeats(), since=None if begins_with_the_log else first.at)
    recorded: list[Decision] = []
    what_if = bool(given) or rules is not RULES
    with progress_bar() as progress:
        noted = _noted(progress.track(chain([first], ticks), description="deciding"), recorded)
        if what_if:
            again = decide_again(noted, replace(newest.policy, **given), state, rules)
            outcome = replayed([decided.decision for decided in again], landings)
            was = replayed(recorded, landings)
        else:
            verdict = verify(noted, state)
            if out is not None:
                deque(noted, maxlen=0)  # the decisions after a difference are written too
                outcome = replayed(recorded, landings)
    if out is not None:
        write_decisions(out, outcome)
    if what_if:
        _print_what_if(was, outcome, given if rules is RULES else {**given, "anchor": False}, out, as_json=as_json)
    else:
        _print_verdict(verdict, settings.lake.uri, out, as_json=as_json)
    if out is not None and not as_json:
        console().print(f"[dim]the decisions are in {safe(out)}[/]")
    if not what_if and verdict.first_difference is not None:
        raise typer.Exit(code=1)


def _noted(ticks: Iterable[Tick], recorded: list[Decision]) -> Iterator[Tick]:
    """Yield the ticks unchanged, and append the decision recorded at each to `recorded`."""
    for tick in ticks:
        if tick.recorded is not None:
            recorded.append(tick.recorded.decision)
        yield tick


def _print_verdict(verdict: Verification, uri: str, out: Path | None, *, as_json: bool) -> None:
    difference = verdict.first_difference
    if as_json:
        values = {} if difference is None else differing(difference)
        differs = {name: {"recorded": was, "derived": now} for name, (was, now) in values.items() if was != now}
        facts = {
            "lake": uri,
            "identical": difference is None,
            "decisions_identical": verdict.decisions,
            "compacted_identical": verdict.compacted,
            "unknowable": verdict.unknowable,
            "first_difference": differs if difference else None,
            "decisions": out,
        }
        print_json(facts, exact=True)
        return
    terminal = console()
    if difference is None:
        terminal.print(f"[bold green]identical[/]: {verdict.decisions:,} decisions")
    else:
        print_difference(terminal, difference)
        terminal.print(f"identical before it: {verdict.decisions:,} decisions")
    if verdict.compacted:
        terminal.print(f"[dim]and {verdict.compacted:,} compacted entries equal the fold of the entries before them[/]")
    if verdict.unknowable:
        terminal.print(
            f"{WARNING}{verdict.unknowable:,} more cannot be derived: their writer still knew an entry that is lost now"
        )


def _print_what_if(
    was: Replayed, would_be: Replayed, given: Mapping[str, Any], out: Path | None, *, as_json: bool
) -> None:
    if as_json:
        facts = {"what_if": dict(given), "recorded": facts_of(was), "derived": facts_of(would_be), "decisions": out}
        print_json(facts, exact=True)
        return
    terminal = console()
    said = ", ".join(f"{name.replace('_', ' ')} {text_of(value)}" for name, value in given.items())
    terminal.print(f"what would have been decided, with {said}; this is not a verification of what was")
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for title in ("", "recorded", f"with {said}"):
        table.add_column(title)
    then = sentences_of(would_be)
    for name, sentence in sentences_of(was).items():
        table.add_row(f"[bold]{name}[/]", sentence, then[name])
    terminal.print(table)
