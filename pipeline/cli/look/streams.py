"""`tidemark streams`: show which streams are silent, have started, or missed heartbeats."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from tidemark.pipeline.cli.here import here, no_window
from tidemark.pipeline.cli.options import AsJson, InWindow, Limit, option, window_named
from tidemark.pipeline.cli.output import columns, print_rows, printed, safe
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.diffs import StatusKind
from tidemark.pipeline.lake.tables.streams import KnownStreams
from tidemark.pipeline.lake.tables.windowed import refuse_other_length
from tidemark.pipeline.phrases import percent
from tidemark.pipeline.quality.silence import silence_of
from tidemark.pipeline.windows import Window, Windowing

WINDOWS_SHOWN = 12

SILENT_SHOWN = ("stream_id", "last_event_time", "silent_for", "first_event_time")
"""The printed columns of silent streams."""

SHOWN = {
    StatusKind.STOPPED: ("that stopped", ("last_event_time",)),
    StatusKind.STARTED: ("that started", ("first_event_time", "heartbeats")),
    StatusKind.MISSED: ("that missed heartbeats", ("missed_heartbeats", "gaps", "longest_gap_seconds", "heartbeats")),
}
"""For each kind of stream: how a sentence describes such streams, and the printed columns of `stream_status`."""


def streams(
    silent: Annotated[bool, option("List streams silent now, or stopped in --window.", "--silent")] = False,
    started: Annotated[bool, option("List streams that started in the window.", "--started")] = False,
    missing: Annotated[bool, option("List streams that missed heartbeats in the window.", "--missing")] = False,
    window: InWindow = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show which streams stopped, started or missed heartbeats.

    Counts streams per window. With --started or --missing, lists the streams of that kind in one window, by default the
    newest computed one. --silent lists the streams that stopped in --window. Without --window, it lists those that have
    had no heartbeat since the newest computed window began. --json prints a list as one object per line.
    """
    asked = {StatusKind.STOPPED: silent, StatusKind.STARTED: started, StatusKind.MISSED: missing}
    kinds = [kind for kind, is_asked in asked.items() if is_asked]
    if len(kinds) > 1:
        raise typer.BadParameter("give only one of --silent, --started and --missing")
    at = here("streams")
    settings, lake, windowing = at.settings, at.lake, at.settings.windowing
    table = lake.diffs().table
    refuse_other_length(table, table.current(), windowing.length)
    if not (computed := sorted(lake.diffs().computed())):
        raise no_window(settings)
    key = computed[-1] if window is None else window_named(settings, window).key
    if key not in computed:
        raise LakeError(f"window {key} has not been computed in {settings.lake.uri}; the last is {computed[-1]}")
    if not kinds:
        keys = computed[-WINDOWS_SHOWN:] if window is None else [key]
        _counts(lake, windowing, keys, windowing.named(computed[-1]), as_json=as_json)
    elif kinds == [StatusKind.STOPPED] and window is None:
        _silent(lake.streams().known(), windowing.named(key), limit, as_json=as_json)
    else:
        _of_kind(lake, windowing.named(key), kinds[0], limit, as_json=as_json)


def _counts(lake: Lake, windowing: Windowing, keys: list[str], newest: Window, *, as_json: bool) -> None:
    diffs, status, known = lake.diffs(), lake.stream_status(), lake.streams().known()
    windows = silence_of(diffs, status.rows(keys), known, windowing, keys)
    behind, silent = status.behind(diffs, keys), known.silent_since(newest.start).num_rows
    facts = {
        "streams": known.rows.num_rows,
        "silent": silent,
        "silent_since": newest.start,
        "windows_behind": behind,
        "windows": [{**asdict(each), "stopped_share": each.stopped_share} for each in windows],
    }
    terminal = printed(facts, as_json=as_json)
    terminal.print(f"{counted(known.rows.num_rows, 'stream')}; {silent:,} silent since {iso(newest.start)} or earlier")
    counts = ("streams", "absent", "stopped", "share", "started", "new", "missing beats", "beats missed")
    table = columns("window", right=counts)
    for each in windows:
        before = each.streams, each.absent, each.stopped, percent(each.stopped_share)
        table.add_row(each.window, *map(safe, (*before, each.started, each.new, each.missing, each.missed_heartbeats)))
    terminal.print(table)
    if behind:
        terminal.print(
            f"windows without an up-to-date stream_status: {len(behind)}, from {behind[0]} to "
            f"{behind[-1]}; `tidemark repair --recompute --from {behind[0]} --to {behind[-1]}` recomputes them"
        )


def _silent(known: KnownStreams, newest: Window, limit: int, *, as_json: bool) -> None:
    silent = known.silent_since(newest.start)
    rows = silent.slice(0, limit).to_pylist()
    for row in rows:
        row["silent_for"] = timedelta(seconds=round((newest.end - row["last_event_time"]).total_seconds()))
    said = f"{len(rows)} of {silent.num_rows} silent streams, without a heartbeat from {iso(newest.start)} on"
    print_rows(rows, said, SILENT_SHOWN, as_json=as_json)


def _of_kind(lake: Lake, window: Window, kind: StatusKind, limit: int, *, as_json: bool) -> None:
    status, key = lake.stream_status(), window.key
    if status.behind(lake.diffs(), [key]):
        raise LakeError(
            f"window {key} has no stream_status, or an outdated one; `tidemark repair --recompute --from {key} --to "
            f"{key}` recomputes the window"
        )
    found, (described, shown) = status.rows([key], kind), SHOWN[kind]
    if kind is StatusKind.MISSED:
        found = found.sort_by([("missed_heartbeats", "descending"), ("stream_id", "ascending")])
    rows = [{name: row[name] for name in ("stream_id", *shown)} for row in found.slice(0, limit).to_pylist()]
    if kind is StatusKind.STARTED:
        begun = lake.streams().known().begun_in(window.start, window.end)
        rows = [{**row, "new": row["stream_id"] in begun} for row in rows]
    print_rows(rows, f"{len(rows)} of {found.num_rows} streams {described} in {window}", as_json=as_json)
