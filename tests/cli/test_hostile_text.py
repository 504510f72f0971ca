"""Stream names, fields and errors that would be commands for Rich, a terminal, a browser or Markdown, in every command
that prints them; and numbers that JSON does not have."""

import json
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.command import Said, said_here
from tests.lake.builders import put
from tests.lake.test_streams import KEYS, WINDOWS, beats
from tests.tuning.tuning_traces import MemoryTrace, Source, ending_before, record
from tidemark.assets.jobs.tuning import tuning_metadata
from tidemark.pipeline.cli import output
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.diffs import StatusKind
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.tuning.inputs import report_on_lake
from tidemark.pipeline.tuning.report import Asked
from tidemark.pipeline.watermark.policy import Policy

HOSTILE = (
    *("[/]", "[bold red]x[/bold red]", "[link=file:///etc/passwd]x[/link]"),  # to Rich
    *("\x1b]0;owned\x07", "\x1b[2J\x1b[31m", "\x9b31mx", "a\u202eb", "a\u2066b", "a\r\nb", "a\x00b"),  # to a terminal
    *("\\[/]", ":heart:"),  # to Rich again
    *("<script>alert(1)</script>", "`x`](javascript:alert(1))", "{{ 7 * 7 }}", "&lt;b&gt;"),  # to a browser
)
TYPED = ("[/]", "[bold red]x[/bold red]", "\x1b]0;owned\x07", "a\u202eb", "a\r\nb", "\\[/]")
"""One of each kind that an argument of a program can be: it holds no NUL."""

INFINITE = {"temperature_delta": float("inf"), "temperature": float("-inf"), "previous_temperature": float("nan")}
CONFIG = '[lake]\nuri = "file:lake"\n[message.fields]\ntemperature = "number"\nstatus = "text"\n'


@dataclass(frozen=True)
class HostileTrace(MemoryTrace):
    """A trace of streams with hostile names."""

    @property
    def names(self) -> tuple[str, ...]:
        return HOSTILE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake full of them, and a trace."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "tidemark.toml").write_text(CONFIG)
    source = Source(seconds=200, rate=33, streams=len(HOSTILE), slow=len(HOSTILE) // 2, fast=len(HOSTILE) // 2, left=0)
    made = source.trace()
    parts = (made.publish_us, made.event_us, made.tracked_us, made.landed_us, made.stream, made.streams)
    moved = ending_before(made, to_us(SystemClock().now()))
    trace = HostileTrace(moved.publish_us, moved.event_us, moved.tracked_us, moved.landed_us, *parts[4:])
    trace.write(folder / "hostile.parquet")
    settings = load_settings(folder / "tidemark.toml")
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    record(Lake(settings.lake, {}, SystemClock()), trace, Policy())
    rows = [{**row, **INFINITE, "status": row["stream_id"]} for row in beats(0, *HOSTILE)]
    put(lake.diffs(), "run", {KEYS[0]: rows, KEYS[1]: []})

    def status(kind: StatusKind, **told: object) -> list[dict[str, object]]:
        return [{"stream_id": name, "kind": str(kind), **told} for name in HOSTILE]

    missed = status(StatusKind.MISSED, missed_heartbeats=1, gaps=1)
    first = [*status(StatusKind.STARTED, first_event_time=WINDOWS[0].start), *missed]
    stopped = status(StatusKind.STOPPED, last_event_time=WINDOWS[0].start)
    put(lake.stream_status(), "run", {KEYS[0]: first, KEYS[1]: stopped})
    return folder


def said(folder: Path, *arguments: str) -> Said:
    return said_here(folder, arguments, {**os.environ, "COLUMNS": "300", "NO_COLOR": "1"})


def is_harmless(text: str) -> bool:
    return all(one.isprintable() or one == "\n" for one in text)


def refuse(constant: str) -> None:
    raise AssertionError(f"JSON has no {constant}")


COMMANDS: dict[str, tuple[str, ...]] = {
    "diffs": ("diffs", "--window", KEYS[0], "--limit", "100"),
    "started": ("streams", "--started", "--window", KEYS[0], "--limit", "100"),
    "missing": ("streams", "--missing", "--window", KEYS[0], "--limit", "100"),
    "stopped": ("streams", "--silent", "--window", KEYS[1], "--limit", "100"),
    "silent": ("streams", "--silent", "--limit", "100"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_hostile_name_is_printed_as_it_is_and_is_no_command(folder: Path, command: tuple[str, ...]) -> None:
    shown = said(folder, *command)
    assert (shown.code, shown.err) == (0, "")
    assert is_harmless(shown.out)
    for name in HOSTILE:
        assert printable(name)[:4] in shown.out, name  # a line that is too long is cut
    rows = [json.loads(line, parse_constant=refuse) for line in said(folder, *command, "--json").out.splitlines()]
    assert {row["stream_id"] for row in rows} == set(HOSTILE)


@pytest.mark.parametrize(
    "refused",
    [
        *("{}", "status --{}", "--config {} status", "diffs --window {}", "explain --at {}", "repair --from {}"),
        *("tune --bands {}", "tune --by {}", "tune hostile.parquet --by attribute:{}", "tune --html nowhere/{}"),
        *("replay {}", "replay hostile.parquet --band {}", "repair --forget {}"),
        *("pubsub --fault {}", "pubsub --host {}"),
    ],
)
def test_what_is_refused_is_repeated_harmlessly(folder: Path, refused: str) -> None:
    for name in TYPED:
        shown = said(folder, *(word.replace("{}", name) for word in refused.split()))
        assert shown.code in (1, 2), name
        assert "Traceback" not in shown.err, name
        assert is_harmless(shown.out + shown.err), name


@pytest.mark.parametrize("command", ["status", "explain", "streams"])
def test_the_other_commands_print_harmlessly(folder: Path, command: str) -> None:
    shown = said(folder, command)
    assert (shown.code, shown.err) == (0, "")
    assert is_harmless(shown.out)


def test_the_tuning_page_its_words_and_dagsters_markdown_show_names_as_text(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = said(folder, "tune", "--bands", "1s,5s", "--html", str(page))
    assert shown.code == 0, shown.err
    assert is_harmless(shown.out)
    html = page.read_text(encoding="utf-8")
    assert is_harmless(html.replace("\N{NO-BREAK SPACE}", " "))
    assert "<script" not in html
    assert "javascript:alert" in html or "&lt;script&gt;" in html or "\\x1b" in html  # some of them are named
    assert "{{ 7 * 7 }}" in html
    settings, bands = load_settings(folder / "tidemark.toml"), (timedelta(seconds=1), timedelta(seconds=5))
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    report = report_on_lake(lake, Asked(settings, SystemClock().now(), timedelta(hours=1), 0.001, bands))
    markdown = str(tuning_metadata(report, "page")["says"].value)
    assert is_harmless(markdown)
    assert "<script" not in markdown.replace("\\<", "")


@pytest.mark.parametrize("by", ["attribute:stream_id", "stream_prefix:["])
def test_cohorts_with_hostile_names_are_shown_as_text(folder: Path, by: str) -> None:
    shown = said(folder, "tune", "hostile.parquet", "--bands", "1s", "--by", by)
    assert shown.code == 0, shown.err
    assert is_harmless(shown.out)
    told = json.loads(said(folder, "tune", "hostile.parquet", "--bands", "1s", "--by", by, "--json").out)
    values = [cohort["value"] for cohort in told["cohorts"]]
    assert values[-1] is None
    assert all(any(name.startswith(value) for name in HOSTILE) for value in values[:-1])
    rows = [line.split('"')[1].replace("\\", "") for line in shown.out.splitlines() if line.startswith(' "')]
    assert [printable(value).replace("\\", "")[:4] for value in values[:-1]] * 2 == [row[:4] for row in rows]


def test_lines_stay_lines_and_nothing_in_one_begins_another(capsys: pytest.CaptureFixture[str]) -> None:
    output.console().print(output.safe_lines("it ended:\n  a [bold]reason[/]\r\n\x1b[31mred"))
    assert capsys.readouterr().out == "it ended:\n  a [bold]reason[/]\n  \\x1b[31mred\n"
    output.print_json({"of a custom table": b"\xff\n"})
    assert capsys.readouterr().out == '{"of a custom table": "/wo="}\n'


def test_no_text_keeps_a_control_character_and_every_other_is_as_it_was() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert printable(every).isprintable()
    assert printable(shown := "".join(filter(str.isprintable, every))) == shown
