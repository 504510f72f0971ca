"""`tidemark streams`: which streams are silent, started or miss beats. It needs the lake alone."""

import json
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli.look import plain, window_key, words
from pipeline.cli.run import AsJson, wide_console
from pipeline.clock import SystemClock, iso
from pipeline.errors import LakeError
from pipeline.lake.layout import Lake
from pipeline.lake.tables.stream_status import Kind
from pipeline.lake.tables.streams import KnownStreams
from pipeline.quality.silence import silence_of
from pipeline.settings import Settings, load_settings
from pipeline.windows import Window

WINDOWS_SHOWN = 12


def streams(
    silent: Annotated[
        bool,
        typer.Option(
            "--silent",
            help="Streams without a heartbeat in the newest computed window, however long silent; with --window, those "
            "that stopped there.",
        ),
    ] = False,
    started: Annotated[bool, typer.Option("--started", help="Streams that started in the window.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Streams that missed heartbeats in the window.")] = False,
    window: Annotated[
        str | None,
        typer.Option(help="A window's key (2026-11-21T05-20Z), or any time within it; else the newest computed."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most streams to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Which streams stopped, started or miss beats: the last windows at a glance, or the streams by name."""
    kinds = [
        kind for kind, is_asked in ((Kind.STOPPED, silent), (Kind.STARTED, started), (Kind.MISSED, missing)) if is_asked
    ]
    if len(kinds) > 1:
        raise typer.BadParameter("ask for one of --silent, --started and --missing")
    settings = load_settings()
    lake = Lake(settings.lake, settings.message.fields, SystemClock())
    computed = sorted(lake.diffs().computed())
    if not computed:
        raise LakeError(f"no window has been computed in {settings.lake.uri} yet; `tidemark status` says what waits")
    key = computed[-1] if window is None else window_key(settings, window)
    if key not in computed:
        raise LakeError(f"window {key} has not been computed in {settings.lake.uri}; the last is {computed[-1]}")
    if not kinds:
        shown = computed[-WINDOWS_SHOWN:] if window is None else [key]
        _glance(settings, lake, shown, settings.windowing.named(computed[-1]), as_json=as_json)
    elif kinds == [Kind.STOPPED] and window is None:
        _silent(lake.streams().known(), settings.windowing.named(key), limit, as_json=as_json)
    else:
        _of_kind(settings, lake, key, kinds[0], limit, as_json=as_json)


def _glance(settings: Settings, lake: Lake, keys: list[str], newest: Window, *, as_json: bool) -> None:
    diffs, status, known = lake.diffs(), lake.stream_status(), lake.streams().known()
    windows, _ = silence_of(diffs, status, known, settings.windowing, keys)
    behind = status.behind(diffs, keys)
    silent = known.silent_since(newest.start)
    if as_json:
        facts = {
            "streams": known.rows.num_rows,
            "silent": silent.num_rows,
            "silent_since": newest.start,
            "windows_behind": behind,
            "windows": [
                {
                    "window": each.window,
                    "streams": each.streams,
                    "absent": each.absent,
                    "stopped": each.stopped,
                    "stopped_share": each.stopped_share,
                    "started": each.started,
                    "new": each.new,
                    "missing": each.missing,
                    "missed_heartbeats": each.missed_heartbeats,
                }
                for each in windows
            ],
        }
        print(json.dumps(facts, default=plain))
        return
    console = wide_console()
    console.print(
        f"{known.rows.num_rows:,} streams; {silent.num_rows:,} silent since {iso(newest.start)} or before",
        highlight=False,
    )
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for name in ("window", "streams", "absent", "stopped", "share", "started", "new", "missing beats", "beats missed"):
        table.add_column(name, justify="left" if name == "window" else "right", no_wrap=True)
    for each in windows:
        counts = (each.started, each.new, each.missing, each.missed_heartbeats)
        share = f"{each.stopped_share:.2%}"
        table.add_row(each.window, *map(words, (each.streams, each.absent, each.stopped)), share, *map(words, counts))
    console.print(table)
    if behind:
        console.print(
            f"{len(behind)} of these windows have no status, or one of older input than their diffs, from {behind[0]} "
            f"to {behind[-1]}; `tidemark recompute --from {behind[0]} --to {behind[-1]}` mends that",
            highlight=False,
        )


def _silent(known: KnownStreams, newest: Window, limit: int, *, as_json: bool) -> None:
    silent = known.silent_since(newest.start)
    rows = [
        {
            "stream_id": row["stream_id"],
            "last_event_time": row["last_event_time"],
            "silent_for": timedelta(seconds=round((newest.end - row["last_event_time"]).total_seconds())),
            "first_event_time": row["first_event_time"],
        }
        for row in silent.slice(0, limit).to_pylist()
    ]
    _print(rows, silent.num_rows, f"streams without a heartbeat from {iso(newest.start)} on", as_json=as_json)


def _of_kind(settings: Settings, lake: Lake, key: str, kind: Kind, limit: int, *, as_json: bool) -> None:
    diffs, status, window = lake.diffs(), lake.stream_status(), settings.windowing.named(key)
    if status.behind(diffs, [key]):
        raise LakeError(
            f"window {key} has no status, or one of older input than its diffs; `tidemark recompute --from {key} --to "
            f"{key}` mends that"
        )
    found = status.rows([key], kind)
    if kind is Kind.MISSED:
        found = found.sort_by([("missed_heartbeats", "descending"), ("stream_id", "ascending")])
    begun = lake.streams().known().begun_in(window.start, window.end) if kind is Kind.STARTED else set()
    rows = [_row(row, kind, begun) for row in found.slice(0, limit).to_pylist()]
    _print(rows, found.num_rows, f"streams {SAYS[kind]} in {window}", as_json=as_json)


SAYS = {Kind.STOPPED: "that stopped", Kind.STARTED: "that started", Kind.MISSED: "that missed heartbeats"}


def _row(row: dict[str, Any], kind: Kind, begun: set[str]) -> dict[str, Any]:
    """What a kind has to say; of a stream that started, whether it had never been there before."""
    wanted = {
        Kind.STOPPED: ("last_event_time",),
        Kind.STARTED: ("first_event_time", "heartbeats"),
        Kind.MISSED: ("missed_heartbeats", "gaps", "longest_gap_seconds", "heartbeats"),
    }[kind]
    shown = {"stream_id": row["stream_id"], **{name: row[name] for name in wanted}}
    return {**shown, "new": row["stream_id"] in begun} if kind is Kind.STARTED else shown


def _print(rows: list[dict[str, Any]], of: int, what: str, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print(json.dumps(row, default=plain))
        return
    console = wide_console()
    if rows:
        table = Table(box=None, header_style="bold", padding=(0, 1))
        for name in rows[0]:
            table.add_column(name, no_wrap=True)
        for row in rows:
            table.add_row(*(escape(words(value)) for value in row.values()))
        console.print(table)
    console.print(f"[dim]{len(rows)} of {of} {what}[/]", highlight=False)


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(streams)
