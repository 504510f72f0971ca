"""`tidemark replay --from-lake`: every recorded decision derived again, or what another policy would have decided."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from pipeline.cli.output import console as wide_console
from pipeline.cli.output import text_of as words
from pipeline.cli.replay_views import (
    differing,
    exact,
    facts_of,
    print_difference,
    print_side_by_side,
    progress_bar,
    sentences_of,
)
from pipeline.clock import SystemClock, iso
from pipeline.errors import LakeError
from pipeline.lake.layout import Lake
from pipeline.replay.decisions_file import write_decisions
from pipeline.replay.log_ticks import LakeLandings, recorded_ticks
from pipeline.replay.outcome import Replayed, replayed
from pipeline.replay.replay import Tick, Verdict, decide_again, verify
from pipeline.settings import Settings
from pipeline.watermark.decision import Decision
from pipeline.watermark.estimator import RULES
from pipeline.watermark.policy import Policy
from pipeline.watermark.rules import Rule
from pipeline.watermark.state import WatermarkState


def from_lake(
    settings: Settings,
    since: datetime | None,
    given: Mapping[str, Any],
    rules: Sequence[Rule],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Verify the recorded decisions, or, with anything `given` of a policy, decide again under it.

    Ends with exit code 1 where a recorded decision does not follow from what is recorded before it.
    """
    lake = Lake(settings.lake, settings.message.fields, SystemClock())
    log = lake.tracking_log()
    newest = log.newest_decision()
    if newest is None:
        raise LakeError(
            f"no decision has been made in {settings.lake.uri} yet; start the pipeline with `tidemark up`, and replay "
            "after the first tick"
        )
    state, ticks = recorded_ticks(log, since)
    first = next(ticks, None)
    if first is None:
        raise LakeError(
            f"the log of {settings.lake.uri} holds no decision after its newest compacted entry before --since; the "
            f"newest is of {iso(newest.decision.at)}, so give an earlier time, or none"
        )
    ticks = chain([first], ticks)
    begins_with_the_log = state.number < 0  # else what landed before was late or not by decisions not looked at
    landings = LakeLandings(lake.heartbeats(), since=None if begins_with_the_log else first.at)
    if given or rules is not RULES:
        policy = replace(newest.policy, **given)
        was, would_be = _decided_again(ticks, policy, rules, state, landings)
        if out is not None:
            write_decisions(out, would_be)
        changed = {**given, "anchor": False} if rules is not RULES else given
        _print_what_if(was, would_be, changed, out, as_json=as_json)
        return
    recorded: list[Decision] = []
    with progress_bar() as progress:
        noted = _noted(progress.track(ticks, description="deriving"), recorded)
        verdict = verify(noted, state)
        if out is not None:
            deque(noted, maxlen=0)  # what stands after a difference is written too
            write_decisions(out, replayed(recorded, landings))
    _print_verdict(verdict, settings.lake.uri, out, as_json=as_json)
    if verdict.first_difference is not None:
        raise typer.Exit(code=1)


def _decided_again(
    ticks: Iterable[Tick], policy: Policy, rules: Sequence[Rule], state: WatermarkState, landings: LakeLandings
) -> tuple[Replayed, Replayed]:
    """What was decided, and what would have been, each with what was late by it."""
    recorded: list[Decision] = []
    with progress_bar() as progress:
        noted = _noted(progress.track(ticks, description="deciding"), recorded)
        decisions = [decided.decision for decided in decide_again(noted, policy, state, rules)]
        return replayed(recorded, landings), replayed(decisions, landings)


def _noted(ticks: Iterable[Tick], recorded: list[Decision]) -> Iterator[Tick]:
    """The ticks as they are, noting what was decided at each."""
    for tick in ticks:
        if tick.recorded is not None:
            recorded.append(tick.recorded.decision)
        yield tick


def _print_verdict(verdict: Verdict, uri: str, out: Path | None, *, as_json: bool) -> None:
    difference = verdict.first_difference
    if as_json:
        facts = {
            "lake": uri,
            "identical": difference is None,
            "decisions_identical": verdict.decisions,
            "compacted_identical": verdict.compacted,
            "unknowable": verdict.unknowable,
            "first_difference": None
            if difference is None
            else {
                name: {"recorded": recorded, "derived": derived}
                for name, (recorded, derived) in differing(difference).items()
                if recorded != derived
            },
            "decisions": None if out is None else str(out),
        }
        print(json.dumps(facts, default=exact))
        return
    console = wide_console()
    if difference is None:
        console.print(f"[bold green]identical[/]: {verdict.decisions:,} decisions", highlight=False)
    else:
        print_difference(console, difference)
        console.print(f"identical before it: {verdict.decisions:,} decisions", highlight=False)
    if verdict.compacted:
        console.print(
            f"[dim]and {verdict.compacted:,} compacted entries hold what stands before them[/]", highlight=False
        )
    if verdict.unknowable:
        console.print(
            f"[yellow]mind[/]  {verdict.unknowable:,} more were written after an entry that is lost now, by one who "
            "still knew it: those cannot be derived",
            highlight=False,
        )
    _print_where(console, out)


def _print_what_if(
    was: Replayed, would_be: Replayed, given: Mapping[str, Any], out: Path | None, *, as_json: bool
) -> None:
    if as_json:
        facts = {
            "what_if": dict(given),
            "recorded": facts_of(was),
            "derived": facts_of(would_be),
            "decisions": None if out is None else str(out),
        }
        print(json.dumps(facts, default=exact))
        return
    console = wide_console()
    said = ", ".join(f"{name.replace('_', ' ')} {words(value)}" for name, value in given.items())
    console.print(f"what would have been, with {said}; not a verification of what was", highlight=False)
    print_side_by_side(console, {"recorded": sentences_of(was), f"with {said}": sentences_of(would_be)})
    _print_where(console, out)


def _print_where(console: Console, out: Path | None) -> None:
    if out is not None:
        console.print(f"[dim]the decisions are in {out}[/]", highlight=False)
