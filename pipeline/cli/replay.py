"""`tidemark replay`: the estimator over a trace, or over what a real run recorded, with no Pub/Sub."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipeline.cli.options import AsJson, duration, moment
from pipeline.cli.output import console as wide_console
from pipeline.cli.replay_lake import from_lake as derive_from_lake
from pipeline.cli.replay_views import Watched, exact, facts_of, print_grid, progress_bar, sentences_of
from pipeline.durations import format_duration
from pipeline.replay.decisions_file import write_decisions
from pipeline.replay.outcome import replayed
from pipeline.replay.replay import decide_again
from pipeline.replay.trace import extent_of, ticks_of
from pipeline.replay.trace_file import ParquetTrace
from pipeline.replay.without_anchor import RULES_WITHOUT_ANCHOR
from pipeline.settings import load_settings
from pipeline.watermark.estimator import RULES
from pipeline.watermark.policy import Policy
from pipeline.watermark.rules import Rule

DEFAULT = Policy()
TICK = timedelta(seconds=10)


def positive(text: str) -> timedelta:
    """A duration option that must be longer than no time."""
    read = duration(text)
    if read <= timedelta(0):
        raise typer.BadParameter(f"{text} is no time at all; it must be longer")
    return read


def share(text: str) -> float:
    """A share, of which something must be left."""
    try:
        read = float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a number") from error
    if not 0 <= read < 1:
        raise typer.BadParameter(f"{text} is not from 0 up to, but not including, 1")
    return read


def _option(parser: Any, help_text: str, default: timedelta | float) -> Any:
    """A policy's option: nothing where it is not given, so that it is known which were."""
    shown = format_duration(default) if isinstance(default, timedelta) else f"{default:g}"
    return typer.Option(parser=parser, help=help_text, show_default=shown)


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="A Parquet file with one row a message.", show_default=False)
    ] = None,
    from_lake: Annotated[
        bool, typer.Option("--from-lake", help="Derive the decisions of the configured lake again, and compare.")
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(parser=moment, help="With --from-lake: from the compacted log entry before this time on."),
    ] = None,
    rule: Annotated[
        Literal["band", "frontier"] | None,
        typer.Option(help="What bounds what may still land.", show_default=DEFAULT.rule),
    ] = None,
    band: Annotated[timedelta | None, _option(duration, "The disorder that is allowed for.", DEFAULT.band)] = None,
    tick: Annotated[timedelta | None, _option(positive, "How often it decides.", TICK)] = None,
    idle_timeout: Annotated[
        timedelta | None, _option(positive, "After this long without a message: idle.", DEFAULT.idle_timeout)
    ] = None,
    near_real_time: Annotated[
        timedelta | None, _option(duration, "A reading this close to its moment: no backlog.", DEFAULT.near_real_time)
    ] = None,
    quantile: Annotated[
        float | None, _option(share, "Passed over of each second's least event times.", DEFAULT.quantile)
    ] = None,
    frontier_quantile: Annotated[
        float | None, _option(share, "Passed over of each second's greatest event times.", DEFAULT.frontier_quantile)
    ] = None,
    no_anchor: Annotated[bool, typer.Option("--no-anchor", help="Without the anchor, to see what is lost.")] = False,
    idle: Annotated[
        Literal["advance", "hold"] | None, typer.Option(help="What silence does.", show_default=DEFAULT.idle)
    ] = None,
    max_idle_lag: Annotated[
        timedelta | None,
        _option(duration, "The most that recent lag holds an idle watermark back.", DEFAULT.max_idle_lag),
    ] = None,
    max_reading_age: Annotated[
        timedelta | None, _option(positive, "An older newest observation holds.", DEFAULT.max_reading_age)
    ] = None,
    seek_tolerance: Annotated[
        timedelta | None, _option(duration, "A reading that falls by more is a seek.", DEFAULT.seek_tolerance)
    ] = None,
    reading_slack: Annotated[
        timedelta | None, _option(duration, "Taken off tracking's reading.", DEFAULT.reading_slack)
    ] = None,
    base_slack: Annotated[timedelta | None, _option(duration, "Taken off base's reading.", DEFAULT.base_slack)] = None,
    complete_from: Annotated[
        datetime | None,
        typer.Option(
            parser=moment, help="Tracking knows all that was published since.", show_default="the first publish time"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one row a tick to this Parquet file.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide again: over a trace of messages, or over what a real run recorded, with no Pub/Sub.

    With --from-lake and no option of the policy, every recorded decision is derived again and must come out the same.
    With one, it shows what would have been decided.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in {
            "rule": rule,
            "band": band,
            "near_real_time": near_real_time,
            "idle_timeout": idle_timeout,
            "idle": idle,
            "max_idle_lag": max_idle_lag,
            "max_reading_age": max_reading_age,
            "seek_tolerance": seek_tolerance,
            "quantile": quantile,
            "frontier_quantile": frontier_quantile,
            "reading_slack": reading_slack,
            "base_slack": base_slack,
        }.items()
        if value is not None
    }
    rules = RULES_WITHOUT_ANCHOR if no_anchor else RULES
    if from_lake:
        _refuse_beside_the_lake(trace=trace, tick=tick, complete_from=complete_from)
        derive_from_lake(load_settings(), since, given, rules, out, as_json=as_json)
        return
    if trace is None:
        raise typer.BadParameter("name a trace, or say --from-lake")
    if since is not None:
        raise typer.BadParameter("--since goes with --from-lake; a trace is replayed whole")
    _refuse_overwriting(trace, out)
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
        watched = Watched(trace, progress, passes=3)
        extent = extent_of(watched)
        ticks = ticks_of(watched, tick, policy.idle_timeout, complete_from, extent)
        again = decide_again(progress.track(ticks, description="deciding"), policy, rules=rules)
        outcome = replayed([decided.decision for decided in again], watched)
    if out is not None:
        write_decisions(out, outcome)
    if as_json:
        facts = {
            "trace": str(trace.path),
            "messages": extent.messages,
            "rejected": extent.rejected,
            "never_tracked": extent.never_tracked,
            "never_landed": extent.never_landed,
            "acknowledged_early": extent.acknowledged_early,
            "taken_for_utc": trace.is_taken_for_utc,
            **facts_of(outcome),
            "policy": {**asdict(policy), "anchor": rules is RULES, "tick": tick},
            "decisions": None if out is None else str(out),
        }
        print(json.dumps(facts, default=exact))
        return
    console = wide_console()
    asides = {"rejected": extent.rejected, "never tracked": extent.never_tracked, "never landed": extent.never_landed}
    aside = ", ".join(f"{count:,} {name}" for name, count in asides.items() if count)
    print_grid(
        console,
        {
            "messages": f"{extent.messages:,}" + (f" ({aside})" if aside else ""),
            **sentences_of(outcome),
            **({} if out is None else {"decisions": str(out)}),
        },
    )
    if extent.acknowledged_early:
        console.print(
            f"[yellow]mind[/]  {extent.acknowledged_early:,} messages were acknowledged before their publish time, as "
            "clocks that disagree have it; they count from their acknowledgement on",
            highlight=False,
        )
    if trace.is_taken_for_utc:
        console.print("[yellow]mind[/]  the trace's times have no time zone and were taken for UTC", highlight=False)


def _refuse_beside_the_lake(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            flag = "a trace" if name == "trace" else f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{flag} does not go with --from-lake, which has its own")


def _refuse_overwriting(trace: Path, out: Path | None) -> None:
    if out is not None and out.exists() and trace.exists() and out.samefile(trace):
        raise typer.BadParameter(f"--out {out} is the trace itself; name another file")


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(replay)
