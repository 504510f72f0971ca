"""`tidemark replay`: derive decisions again, from a trace or from a recorded run, without Pub/Sub."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tidemark.pipeline.cli.options import (
    AsJson,
    duration,
    duration_option,
    option,
    positive,
    share,
    since_option,
    time_option,
)
from tidemark.pipeline.cli.output import WARNING, console, facts_table, print_json, progress_bar, text_of
from tidemark.pipeline.cli.tune.replay_lake import from_lake as derive_from_lake
from tidemark.pipeline.cli.tune.replay_views import Watched, facts_of, sentences_of
from tidemark.pipeline.replay.outcome import replayed, write_decisions
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR, decide_again
from tidemark.pipeline.replay.trace import extent_of, ticks_of
from tidemark.pipeline.replay.trace_file import ParquetTrace
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule

DEFAULT = Policy()
TICK = timedelta(seconds=10)
HELP = {
    "rule": "The rule that bounds what may still land.",
    "band": "The disorder that is allowed for.",
    "idle_timeout": "The idle rule applies after this silence.",
    "quantile": "The share of each second's least event times to pass over.",
    "idle": "What the watermark does in a silence.",
    "max_lag": "A message published longer than this after its event does not hold the watermark.",
}
"""The policy's settings."""


def _default(value: object) -> str:
    """Format a default for `--help`. It applies to a trace; with --from-lake, the recorded value does."""
    return f"{text_of(value)} for a trace"


def _setting(name: str, parser: Any = duration) -> Any:
    """Define the option of one of the policy's settings."""
    default, more = getattr(DEFAULT, name), {}
    if default is None or isinstance(default, timedelta):
        more = {"parser": parser, "metavar": "<duration>"}
    if isinstance(default, float):
        more = {"parser": share, "metavar": "<share>"}
    return option(HELP[name], show_default=_default(default), **more)


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="A Parquet file with one row for each message.", show_default=False)
    ] = None,
    from_lake: Annotated[
        bool, option("Derive the decisions of the configured lake again, and compare.", "--from-lake")
    ] = False,
    since: Annotated[Any, since_option("With --from-lake: begin at the compacted log entry before")] = None,
    rule: Annotated[Literal["band", "frontier"] | None, _setting("rule")] = None,
    band: Annotated[timedelta | None, _setting("band")] = None,
    tick: Annotated[
        timedelta | None, duration_option("The time between decisions.", parser=positive, show_default=_default(TICK))
    ] = None,
    idle_timeout: Annotated[timedelta | None, _setting("idle_timeout", positive)] = None,
    quantile: Annotated[float | None, _setting("quantile")] = None,
    no_anchor: Annotated[bool, option("Decide without the anchor, to see what it saves.", "--no-anchor")] = False,
    idle: Annotated[Literal["advance", "hold"] | None, _setting("idle")] = None,
    slack: Annotated[
        timedelta | None, duration_option("Subtracted from both readings.", show_default=_default(DEFAULT.base_slack))
    ] = None,
    max_lag: Annotated[timedelta | None, _setting("max_lag", positive)] = None,
    complete_from: Annotated[
        datetime | None,
        time_option("Tracking knows everything published since then.", show_default="the first publish time"),
    ] = None,
    out: Annotated[Path | None, option("Write one row for each tick to this Parquet file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Decide again, over a trace or over a recorded log.

    With --from-lake and no setting of the policy, derive every recorded decision again; each must come out the same.
    With --from-lake and a setting, show what would have been decided. A trace uses the defaults of the policy, not the
    settings file.
    """
    arguments = locals()
    given = {name: arguments[name] for name in HELP if arguments[name] is not None}
    given |= {} if slack is None else {"reading_slack": slack, "base_slack": slack}
    rules = RULES_WITHOUT_ANCHOR if no_anchor else RULES
    if from_lake:
        refused = {"a trace": trace, "--tick": tick, "--complete-from": complete_from}
        for option, value in refused.items():
            if value is not None:
                raise typer.BadParameter(f"{option} cannot be combined with --from-lake, which has its own")
        derive_from_lake(since, given, rules, out, as_json=as_json)
        return
    if trace is None:
        raise typer.BadParameter("name a trace, or say --from-lake")
    if since is not None:
        raise typer.BadParameter("--since only works with --from-lake; a trace is replayed whole")
    if out is not None and out.exists() and trace.exists() and out.samefile(trace):
        raise typer.BadParameter(f"--out {out} is the trace itself; name another file")
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
    counts = {name: getattr(extent, name) for name in ("rejected", "never_tracked", "never_landed")}
    if as_json:
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
        print_json(facts, exact=True)
        return
    terminal = console()
    aside = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    rows = {"messages": f"{extent.messages:,}" + (f" ({aside})" if aside else ""), **sentences_of(outcome)}
    terminal.print(facts_table(rows if out is None else {**rows, "decisions": out}))
    if extent.acknowledged_early:
        terminal.print(
            f"{WARNING}{extent.acknowledged_early:,} messages were acknowledged before their publish time, because "
            "clocks disagree; they count from their acknowledgement on"
        )
    if trace.is_taken_for_utc:
        terminal.print(f"{WARNING}the trace's times have no time zone and were taken for UTC")
