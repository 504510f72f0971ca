"""How the commands print what came from outside, and how they read what is typed."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import typer

from tidemark.pipeline.cli import output
from tidemark.pipeline.cli.options import Span, duration, moment, positive, share, window_named
from tidemark.pipeline.observe.facts import of_runs
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.quality.failing import Failing
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window


def window(text: str) -> Window:
    return window_named(Settings(), text)


def printed(capsys: pytest.CaptureFixture[str], name: str) -> str:
    terminal = output.console()
    table = output.columns("stream")
    table.add_row(output.safe(name))
    terminal.print(table)
    terminal.print(output.facts_table({name: name}))
    terminal.print(f"[bold]{output.safe(name)}[/]")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["[/]", "[bold]x[/]", "\\[x]", "a\\", ":heart:", "[link=file:x]y[/link]"])
def test_text_that_looks_like_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert printed(capsys, name).count(name) == 4


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\x9b2J", r"a\x9b2J"),
        ("a\rb\nc", r"a\rb\nc"),
        ("a\u202eb", r"a\u202eb"),
        ("a\udc80b", r"a\udc80b"),
        ("Straße 東京", "Straße 東京"),
    ],
)
def test_control_sequences_for_a_terminal_are_escaped(
    capsys: pytest.CaptureFixture[str], name: str, shown: str
) -> None:
    assert printed(capsys, name).count(shown) == 4


def test_lines_stay_lines_and_nothing_in_one_begins_another(capsys: pytest.CaptureFixture[str]) -> None:
    output.console().print(output.safe_lines("it ended:\n  a [bold]reason[/]\r\n\x1b[31mred"))
    assert capsys.readouterr().out == "it ended:\n  a [bold]reason[/]\n  \\x1b[31mred\n"


@pytest.mark.parametrize("reason", ["no Spark answers", "no Spark answers."])
def test_runs_that_fail_are_said_with_one_full_stop(capsys: pytest.CaptureFixture[str], reason: str) -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    output.warn(output.console(), of_runs(Failing(1, at, at, reason, None, None)))
    assert capsys.readouterr().out.endswith("no Spark answers. Dagster's UI has each run's log\n")


def test_no_text_keeps_a_control_character() -> None:
    for one in map(chr, range(sys.maxunicode + 1)):
        assert printable(one).isprintable()
        assert (printable(one) == one) == one.isprintable()


def test_an_error_keeps_its_lines() -> None:
    assert printable("one\ntwo\x1b", keep="\n") == "one\ntwo\\x1b"


def test_json_has_times_as_text_and_durations_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    time = datetime(2026, 11, 21, 5, 20, 0, 123456, tzinfo=UTC)
    output.print_json({"at": time, "for": timedelta(seconds=1.5)})
    output.print_json({"at": time}, exact=True)
    rounded, exact = map(json.loads, capsys.readouterr().out.splitlines())
    assert rounded == {"at": "2026-11-21T05:20:00.123Z", "for": 1.5}
    assert exact == {"at": "2026-11-21T05:20:00.123456Z"}


def test_the_default_of_a_duration_reads_as_it_is_typed() -> None:
    assert str(Span(seconds=30)) == "30s"
    assert duration(Span(seconds=30)) == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("read", "text", "value"), [(share, "0.01%", 0.0001), (share, "0.5", 0.5), (positive, "1m", timedelta(minutes=1))]
)
def test_each_valid_duration_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((moment, text) for text in ("9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z")),
        *((window, text) for text in ("9999-12-31T23-55Z", "9999-12-31T23:59:59Z", "9000-01-01T00-00Z")),
        *((window, text) for text in ("1969-12-31T23-55Z", "noon", "2026-11-21T05-21Z")),
        (share, "100%"),
        (share, "nan"),
        (share, "some"),
        (positive, "0"),
        (duration, "10"),
        (moment, "noon"),
    ],
)
def test_invalid_values_are_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(typer.BadParameter, match=text):
        read(text)
