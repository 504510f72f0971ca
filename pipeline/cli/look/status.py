"""`tidemark status`: the state of a pipeline, from its lake, and from what its processes recorded on this machine."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from statistics import median
from typing import Annotated, Any

from rich.console import Console

from tidemark.local.services.processes import noted_in
from tidemark.pipeline.cli.here import Here, here
from tidemark.pipeline.cli.options import AsJson, option
from tidemark.pipeline.cli.output import columns, facts_table, grid, printed, safe, text_of, warn
from tidemark.pipeline.clock import rough
from tidemark.pipeline.compute.table_definition import read_table
from tidemark.pipeline.errors import InvalidSettings, NewerFormat, ServiceFailed
from tidemark.pipeline.figures import counted
from tidemark.pipeline.observe.facts import LakeStatus, read_status
from tidemark.pipeline.quality.due_windows import Followed
from tidemark.pipeline.quality.lost import untracked_sentence
from tidemark.pipeline.settings import Settings

FAILED = {"failed_runs": "failures", "failed_last": "last", "failed_reason": "reason"}
"""Facts about a custom table's failed runs: maps the name that is printed to the name in `table_failures`."""

TAKEN = "find out who else acknowledges on base, or seeks base, or whether an emulator restarted empty"
"""The advice if messages are lost for certain."""

SHOWN = ("name", "newest", "version", "windows", "rows", "due", "by_other_versions", "failed_runs")


def status(
    everything: Annotated[bool, option("Show every figure, and the custom tables.", "--all")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether the pipeline is live, and what is wrong.

    Shows the watermark, then what is lost, late, failing or waiting, then what to do. --json prints every figure; add
    --all for the custom tables.
    """
    at, tables = here(), list[dict[str, Any]]()
    now = at.clock.now()
    found = read_status(at.lake, at.settings, now, at.clock)
    if everything and not at.settings.pubsub.attach:
        tables = list(read_custom_tables(at, now, found.details["table_failures"]))
    listed = {"tables": tables} if everything else {}
    named = {"pipeline": at.settings.pipeline_name}
    terminal = printed({**named, **found.facts, **found.details, **listed}, as_json=as_json)
    terminal.print(f"[dim]{safe(at.settings.lake.uri)}[/]")
    if not everything:
        show_screen(found, at.settings, terminal, is_up=lambda: _is_up(at.settings))
        return
    for group, facts in found.groups.items():
        if facts:
            terminal.print(f"\n[bold underline]{group}[/]")
            terminal.print(facts_table(facts))
    if tables:
        counts = [name.replace("_", " ") for name in SHOWN[3:]]
        rows = ([one[name] for name in SHOWN] for one in tables)
        terminal.print(columns("custom table", "newest window", "version", right=counts, rows=rows, folds=True))
        warn(terminal, *(one["wrong"] for one in tables if one["wrong"] is not None), apart=True)
    warn(terminal, *found.of_ticks, *found.of_runs, apart=True)


def show_screen(found: LakeStatus, settings: Settings, terminal: Console, *, is_up: Callable[[], bool]) -> None:
    """Print the main figures, a few lines per group, and what to do next. `is_up` returns True if a `tidemark up` with
    these settings is running."""
    facts, rows = found.facts, list[tuple[str, str]]()
    failing = [one for one in (*found.of_ticks, *found.of_runs) if one != found.details.get("standing_still")]
    landing = "base_read_by_others" not in facts
    groups: dict[str, Sequence[tuple[str, str]]] = {
        "watermark": list(_live(found)),
        **({"lost": list(_lost(facts)), "late": list(_late(facts))} if landing else {}),
        "failing": [("red", one) for one in failing] or [("green", "nothing")],
        "waiting": list(_waiting(facts)),
        **({"stored": [("", _stored(facts))]} if landing else {}),
        "to do": [("", one) for one in _to_do(found, settings, failing, is_up=is_up)] or [("green", "nothing")],
    }
    for group, lines in groups.items():
        said = (f"[{colour}]{safe(text)}[/]" if colour else safe(text) for colour, text in lines)
        rows += [(f"[bold]{group}[/]" if not number else "", text) for number, text in enumerate(said)]
    terminal.print(grid(2, rows))


def _live(found: LakeStatus) -> Iterator[tuple[str, str]]:
    facts, standing, within = found.facts, found.details.get("standing_still"), ""
    behind, windows = facts["behind_now"], found.details.get("windows", ())
    if delays := [one["seconds_after_end"] for one in windows if one["state"] == "computed"]:
        normal = rough(timedelta(seconds=median(delays)))
        within = f"; half of the newest windows were last computed within {normal} of their end"
    if facts["decided"] is None:
        yield "yellow", "no decision yet: the first tick of the sensor `tracking` makes one"
    elif behind is None:
        yield "yellow", "there is no watermark yet"
    else:
        side = "behind" if behind >= timedelta(0) else "ahead of"
        yield "red" if standing else "green", f"{rough(abs(behind))} {side} now{within}"
    if standing:
        yield "red", standing
    elif facts["decided"] is not None:
        yield "", facts["decided"]
    if "reading" in facts:
        yield "yellow", facts["reading"]


def _lost(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    least, most = facts["lost_at_least"], facts["lost_at_most"]
    lost = f"{counted(most, 'message', least)} since {text_of(facts['lost_since'])}"
    unknown = _unknown(facts, "missed_not_checked", "missed_unknown", "lost_unknown")
    if most and not least:
        yield "yellow", f"{lost}: none for certain, because tracking counts a redelivered message again"
    elif most:
        yield "red", lost
    elif not (unknown or facts["untracked"]):
        yield "green", "nothing"
    if facts["untracked"]:
        yield "red", untracked_sentence(facts["untracked"])
    if facts["missed"]:
        stale = counted(facts["windows_stale"], "computed window")
        yield "yellow", f"{facts['missed']:,} missed by {stale}, the first {text_of(facts['first_stale_window'])}"
    yield from unknown


def _late(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    late, since = facts["late"], text_of(facts["late_since"])
    unknown = _unknown(facts, "late_unknown", "passed_over_unknown")
    if late:
        yield "yellow", f"{late:,} with event times since {since}"
    elif not unknown:
        yield "green", "nothing"
    if facts.get("passed_over"):
        lag = f"lag more than max_lag ({text_of(facts['max_lag'])}): the watermark does not wait for them"
        yield "yellow", f"{facts['passed_over']:,} published in the last hour {lag}"
    yield from unknown


def _unknown(facts: Mapping[str, Any], *names: str) -> list[tuple[str, str]]:
    """Return the lines about figures that could not be counted completely. A group with such a line must not report
    "nothing"."""
    return [("yellow", facts[name]) for name in names if name in facts]


def _waiting(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "rejected" in facts:
        yield "", f"{counted(facts['rejected'], 'message')} rejected"
        return
    windows, quarantined = facts["windows_waiting"], facts["quarantined"]
    yield "yellow" if windows else "green", f"{counted(windows, 'closed window')} to be computed"
    if quarantined:
        yield "yellow", f"in quarantine: {text_of(quarantined)}"
    if "quarantined_unknown" in facts:
        yield "yellow", facts["quarantined_unknown"]
    if "null_fields" in facts:
        yield "yellow", f"always null in the last hour: {', '.join(facts['null_fields'])}"


def _stored(facts: Mapping[str, Any]) -> str:
    landed = f"{counted(facts['landed_rows'], 'heartbeat')} through {text_of(facts['landed_through'])}"
    computed = f"{counted(facts['windows_computed'], 'window')} computed, the last {text_of(facts['last_window'])}"
    return f"{landed}; {computed}" if facts["landed_rows"] else "nothing has landed"


def _is_up(settings: Settings) -> bool:
    with suppress(NewerFormat, ServiceFailed):  # its records cannot be read
        return noted_in(settings.dagster.state_folder).living_owner() is not None
    return False


def _stays_stale(facts: Mapping[str, Any], settings: Settings) -> bool:
    """Return True if there are stale windows that are not recomputed automatically. The first stale window lags the
    watermark most."""
    key, watermark = facts.get("first_stale_window"), facts["watermark"]
    if key is None or watermark is None:
        return key is not None
    lag: timedelta = watermark - settings.windowing.named(key).end
    return lag >= settings.windows.recompute_within


def _to_do(
    found: LakeStatus, settings: Settings, failing: Sequence[str], *, is_up: Callable[[], bool]
) -> Iterator[str]:
    facts = found.facts
    if facts["decided"] is None or "standing_still" in found.details:
        look = "`tidemark up --status` names any process that is not ready, and Dagster's UI has logs of failed ticks"
        start = "`tidemark attach` or `tidemark up`" if "base_read_by_others" in facts else "`tidemark up`"
        yield look if is_up() else f"start the pipeline ({start}); if it runs, {look}"
    elif facts["reason"] not in ("ADVANCED", "IDLE_ADVANCED"):
        yield "`tidemark explain` says what the watermark waits for"
    changed, page = found.details.get("settings_changed"), "docs/concepts/late-and-missed.md"
    without_requeued = " (without requeued messages)" if facts.get("requeued") else ""
    advice = (
        (facts.get("lost_at_least"), f"{TAKEN} ({page})"),
        (facts.get("untracked"), f"find out who else reads tracking, or seeks tracking ({page})"),
        (any(name.endswith("_unknown") for name in facts), "`tidemark repair` names the damaged files"),
        (_stays_stale(facts, settings), "`tidemark repair` recomputes the stale windows whose heartbeats are kept"),
        (facts.get("late") or facts.get("missed"), f"`tidemark tune` says which band is enough{without_requeued}"),
        (changed, "restart `tidemark up`, so that it reads the changed settings"),
        (any(one != changed for one in failing), "read the log of the failed run or tick in Dagster's UI"),
        (facts.get("quarantined"), "`tidemark quarantine` shows why messages are rejected"),
        ("null_fields" in facts, "`tidemark try` shows what [message.fields] finds in a message"),
    )
    yield from (text for applies, text in advice if applies)


def read_custom_tables(at: Here, now: datetime, failures: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the facts of each custom table. `failures` are the facts about failing tables. Raises LakeError if the lake
    cannot be read.

    `version`, `due` and `by_other_versions` are None if the settings do not name the table, or if the file that defines
    it cannot be used. `wrong` says why the file cannot be used, and is otherwise None.
    """
    lake, settings = at.lake, at.settings
    failing = {each["table"]: each for each in failures}
    followed = _followed(at, now) if settings.tables else None
    for name in sorted({*settings.tables, *lake.own_tables(), *failing}):
        made = lake.own_table(name).made()
        versions = Counter(one.version for one in made.values())
        facts: dict[str, Any] = {
            "name": name,
            "windows": len(made),
            "rows": sum(one.rows for one in made.values()),
            "newest": max(made, default=None),
            "version": None,
            "versions": dict(versions),
            **dict.fromkeys(("by_other_versions", "due", "wrong")),
        }
        if name in settings.tables and followed is not None:
            try:
                definition = read_table(settings, name)
            except InvalidSettings as error:
                facts["wrong"] = str(error)
            else:
                due = followed.due(definition.windowing(settings.windows), made)
                by_others = len(made) - versions[definition.version]
                facts |= {"version": definition.version, "by_other_versions": by_others, "due": len(due)}
        failed = failing.get(name, {})
        facts |= {fact: failed.get(field, 0 if fact == "failed_runs" else None) for fact, field in FAILED.items()}
        yield facts


def _followed(at: Here, now: datetime) -> Followed:
    windowing, lake = at.settings.windowing, at.lake
    kept, watermark = lake.kept_windows(windowing), lake.tracking_log().newest().watermark
    return Followed.read(lake, windowing, kept.closed(None if watermark is None else min(watermark, now)))
