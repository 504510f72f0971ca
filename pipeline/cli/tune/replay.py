"""`tidemark replay`: decide the watermark over a trace, or verify recorded decisions. Does not use Pub/Sub."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from tidemark.pipeline.cli.here import here, no_decision
from tidemark.pipeline.cli.options import (
    AsJson,
    apart_from,
    duration,
    duration_option,
    option,
    positive,
    refuse_output,
    share,
    since_option,
    time_option,
)
from tidemark.pipeline.cli.output import columns, console, facts_table, printed, progress_bar, safe, text_of, warn
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.phrases import percent, words
from tidemark.pipeline.replay.replay import (
    RULES_WITHOUT_ANCHOR,
    Difference,
    Replayed,
    Verification,
    decide_again,
    replayed,
    verify,
    write_decisions,
)
from tidemark.pipeline.replay.sources import LakeLandings, LogMessages, ParquetTrace, recorded_ticks
from tidemark.pipeline.replay.trace import Tick, Trace, extent_of, ticks_of
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.state import DecisionRecord

DEFAULT = Policy()
TICK = timedelta(seconds=10)
HELP = {
    "rule": "The rule that bounds the watermark.",
    "band": "The amount of disorder to allow for.",
    "idle_timeout": "The length of silence after which the idle rule applies.",
    "quantile": "The share of each second's earliest event times to ignore.",
    "idle": "Let the watermark advance or hold in a silence.",
    "max_lag": "A message published more than this after its event does not hold the watermark.",
}


def _default(value: object) -> str:
    return f"{text_of(value)} for a trace"


def _setting(name: str, parser: Any = duration) -> Any:
    default, more = getattr(DEFAULT, name), {}
    if default is None or isinstance(default, timedelta):
        more = {"parser": parser, "metavar": "<duration>"}
    if isinstance(default, float):
        more = {"parser": share, "metavar": "<share>"}
    return option(HELP[name], show_default=_default(default), **more)


def replay(
    trace: Annotated[Path | None, typer.Argument(help="A Parquet file with one row per message.")] = None,
    from_lake: Annotated[
        bool, option("Derive the decisions of the configured lake again, and compare.", "--from-lake")
    ] = False,
    since: Annotated[
        datetime | None, since_option("With --from-lake: begin at the last compacted log entry before")
    ] = None,
    rule: Annotated[Literal["band", "frontier"] | None, _setting("rule")] = None,
    band: Annotated[timedelta | None, _setting("band")] = None,
    tick: Annotated[
        timedelta | None, duration_option("The time between decisions.", parser=positive, show_default=_default(TICK))
    ] = None,
    idle_timeout: Annotated[timedelta | None, _setting("idle_timeout", positive)] = None,
    quantile: Annotated[float | None, _setting("quantile")] = None,
    no_anchor: Annotated[bool, option("Decide without the anchor, to see the anchor's effect.", "--no-anchor")] = False,
    idle: Annotated[Literal["advance", "hold"] | None, _setting("idle")] = None,
    slack: Annotated[
        timedelta | None,
        duration_option("Subtract this from both readings.", show_default=_default(DEFAULT.base_slack)),
    ] = None,
    max_lag: Annotated[timedelta | None, _setting("max_lag", positive)] = None,
    complete_from: Annotated[
        datetime | None,
        time_option(
            "Assume that tracking has all messages published from then on.", show_default="the first publish time"
        ),
    ] = None,
    out: Annotated[Path | None, option("Write one row per tick to this Parquet file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decide the watermark again, from a trace or a log.

    --from-lake decides again from the recorded log, and verifies that every decision matches the recorded one. If
    options change the policy, it instead shows the decisions that the changed policy would have made. A trace uses the
    policy's defaults, not the settings file.
    """
    arguments = locals()
    given = {name: arguments[name] for name in HELP if arguments[name] is not None}
    given |= {} if slack is None else {"reading_slack": slack, "base_slack": slack}
    rules = RULES_WITHOUT_ANCHOR if no_anchor else RULES
    refuse_output("--out", out, trace)
    if from_lake:
        if trace is not None:
            raise typer.BadParameter("a trace cannot be combined with --from-lake")
        apart_from("--from-lake", tick=tick, complete_from=complete_from)
        _of_lake(since, given, rules, out, as_json=as_json)
        return
    if trace is None:
        raise typer.BadParameter("name a trace, or use --from-lake")
    if since is not None:
        raise typer.BadParameter("--since only works with --from-lake; a trace is replayed whole")
    _of_trace(ParquetTrace(trace), replace(DEFAULT, **given), rules, tick or TICK, complete_from, out, as_json=as_json)


def _of_trace(
    trace: ParquetTrace,
    policy: Policy,
    rules: Sequence[Rule],
    tick: timedelta,
    complete_from: datetime | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    with progress_bar() as progress:
        trace.tell = partial(progress.advance, progress.add_task("reading", total=trace.rows * 3))
        extent = extent_of(trace)
        ticks = ticks_of(trace, tick, policy.idle_timeout, complete_from, extent)
        again = decide_again(progress.track(ticks, description="deciding"), policy, rules=rules)
        outcome = replayed([decided.decision for decided in again], trace)
    if out is not None:
        write_decisions(out, outcome)
    counts = {name: getattr(extent, name) for name in ("rejected", "never_tracked", "never_landed")}
    facts = {
        "trace": trace.path,
        "messages": extent.messages,
        **counts,
        "acknowledged_early": extent.acknowledged_early,
        "taken_for_utc": trace.is_taken_for_utc,
        **facts_of(outcome),
        "policy": {**asdict(policy), "anchor": rules is RULES, "tick": tick},
        "decisions": out,
    }
    terminal = printed(facts, as_json=as_json, exact=True)
    aside = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    rows = {"messages": f"{extent.messages:,}" + (f" ({aside})" if aside else ""), **sentences_of(outcome)}
    terminal.print(facts_table(rows if out is None else {**rows, "decisions": out}))
    if extent.acknowledged_early:
        early = counted(extent.acknowledged_early, "message")
        said = f"clocks disagree: {early} acknowledged before the publish time; each counts from its acknowledgement on"
        warn(terminal, said)
    if trace.is_taken_for_utc:
        warn(terminal, "the trace's times have no time zone and were read as UTC")


def _of_lake(
    since: datetime | None, given: Mapping[str, Any], rules: Sequence[Rule], out: Path | None, *, as_json: bool
) -> None:
    """Verify the recorded decisions or, with other settings (`given`) or other `rules`, print what would change.

    When it verifies, the exit code is 1 if a recorded decision does not follow from the earlier log entries.
    """
    at = here()
    settings, lake = at.settings, at.lake
    log = lake.tracking_log()
    if (newest := log.newest().record) is None:
        raise no_decision(settings)
    state, ticks = recorded_ticks(log, since)
    if (first := next(ticks, None)) is None:
        raise LakeError(
            f"the log of {settings.lake.uri} has no decision after the time of --since; the newest was made at "
            f"{iso(newest.decision.at)}. Give an earlier --since, or none"
        )
    begins_with_the_log = state.number < 0  # otherwise, earlier decisions say what was late before the first tick
    landings: Trace = LakeLandings(lake.heartbeats(), since=None if begins_with_the_log else first.at)
    recorded: list[Decision] = []
    what_if = bool(given) or rules is not RULES
    every: Iterable[Tick] = chain([first], ticks)
    if settings.pubsub.attach and (what_if or out is not None):
        landings = LogMessages(every := list(every), first.at)
    with progress_bar() as progress:
        noted = _noted(progress.track(every, description="deciding"), recorded)
        if what_if:
            policy = replace(newest.policy.with_band(given.get("band", newest.policy.band)), **given)
            outcome = replayed([made.decision for made in decide_again(noted, policy, state, rules)], landings)
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
    if out is not None:
        console(quiet=as_json).print(f"[dim]the decisions are in {safe(out)}[/]")
    if not what_if and verdict.first_difference is not None:
        raise typer.Exit(code=1)


def _noted(ticks: Iterable[Tick], recorded: list[Decision]) -> Iterator[Tick]:
    for tick in ticks:
        if tick.recorded is not None:
            recorded.append(tick.recorded.decision)
        yield tick


def _print_verdict(verdict: Verification, uri: str, out: Path | None, *, as_json: bool) -> None:
    difference = verdict.first_difference
    values = {} if difference is None else side_by_side(difference)
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
    terminal = printed(facts, as_json=as_json, exact=True)
    if difference is None:
        terminal.print(f"[bold green]identical[/]: {counted(verdict.decisions, 'decision')}")
    else:
        print_difference(terminal, difference)
        terminal.print(f"identical before it: {counted(verdict.decisions, 'decision')}")
    if verdict.compacted:
        terminal.print(f"[dim]identical compacted entries: {verdict.compacted:,}[/]")
    if verdict.unknowable:
        said = f"entries that cannot be derived, because they depend on a lost log entry: {verdict.unknowable:,}"
        warn(terminal, said)


def _print_what_if(
    was: Replayed, would_be: Replayed, given: Mapping[str, Any], out: Path | None, *, as_json: bool
) -> None:
    facts = {"what_if": dict(given), "recorded": facts_of(was), "derived": facts_of(would_be), "decisions": out}
    terminal = printed(facts, as_json=as_json, exact=True)
    said = ", ".join(f"{name.replace('_', ' ')} {text_of(value)}" for name, value in given.items())
    terminal.print(f"decisions as they would have been with {said}; this is not a verification of the recorded ones")
    table, then = columns("", "recorded", f"with {said}", gap=2, folds=True), sentences_of(would_be)
    for name, sentence in sentences_of(was).items():
        table.add_row(f"[bold]{name}[/]", sentence, then[name])
    terminal.print(table)


def facts_of(replayed: Replayed) -> dict[str, Any]:
    """Return a replay's figures as plain values for JSON."""
    hold = replayed.longest_hold()
    return {
        "ticks": len(replayed.decisions),
        "first_tick": replayed.decisions[0].at,
        "last_tick": replayed.decisions[-1].at,
        "watermark": replayed.watermark,
        "landed": replayed.landed,
        "late": replayed.late,
        "late_share": replayed.late_share,
        "reasons": replayed.reasons,
        "lag_p50_seconds": replayed.lag(0.5),
        "lag_p99_seconds": replayed.lag(0.99),
        "longest_hold": None if hold is None else {**asdict(hold), "lasted_seconds": hold.lasted},
    }


def sentences_of(replayed: Replayed) -> dict[str, str]:
    """Format a replay's figures as human-readable text, keyed by subject."""
    facts, hold = facts_of(replayed), replayed.longest_hold()
    median, most = facts["lag_p50_seconds"], facts["lag_p99_seconds"]
    return {
        "ticks": f"{facts['ticks']:,} from {text_of(facts['first_tick'])} to {text_of(facts['last_tick'])}",
        "watermark": text_of(facts["watermark"]),
        "late": f"{replayed.late:,} of {replayed.landed:,} that landed ({percent(replayed.late_share)})",
        "lag": "—" if median is None else f"median {_lasting(median)}, 99 % within {_lasting(most)}",
        "reasons": ", ".join(f"{count:,} {reason}" for reason, count in replayed.reasons.items()),
        "longest hold": f"{_lasting(hold.lasted)} from {text_of(hold.begin)}, {hold.reason}" if hold else "none",
    }


def _lasting(duration: timedelta) -> str:
    return words(duration.total_seconds())


def side_by_side(difference: Difference) -> dict[str, tuple[Any, Any]]:
    """Map every field's name to its recorded and its derived value, equal or not. A nested field's name is its
    path."""
    recorded, derived = _flat(difference.recorded), _flat(difference.derived)
    return {name: (recorded.get(name), derived.get(name)) for name in {**recorded, **derived}}


def print_difference(terminal: Console, difference: Difference) -> None:
    """Print all recorded and derived values, and mark those that differ."""
    what = "decision" if isinstance(difference.recorded, DecisionRecord) else "compacted entry"
    table = columns("", "", "recorded", "derived", gap=2, folds=True, title=f"the first {what} that differs")
    for name, values in side_by_side(difference).items():
        mark, style = ("≠", "bold red") if values[0] != values[1] else ("", "")
        shown = (safe(iso(value, exact=True) if isinstance(value, datetime) else value) for value in values)
        table.add_row(mark, name, *shown, style=style)
    terminal.print(table)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in fields(value):
        inner, path = getattr(value, field.name), f"{prefix}{field.name}"
        if isinstance(inner, Histogram):
            flat[f"{path}.cells"] = len(inner)
            for name in ("messages", "newest_publish_us", "oldest_event_us"):
                flat[f"{path}.{name}"] = getattr(inner, name)
        elif is_dataclass(inner):
            flat |= _flat(inner, f"{path}.")
        else:
            flat[path] = inner
    return flat
