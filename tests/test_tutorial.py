"""The tutorial's commands, run as the page has them, print what the page shows."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.official_emulator import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE = (Path(__file__).parents[1] / "docs" / "start" / "tutorial.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave\s+this\s+as\s+`([^`]+)`")
PORTS = {"8085": 0, "15002": 1, "3000": 2, "9464": 4}
"""The default ports that the page shows, and their places among those of `tidemark init --ports`."""

PATIENCE_SECONDS = 420.0
"""Until a block must print what the page shows. Ticks are ten seconds apart, and Spark starts in half a minute."""

STOPPED_WITHIN_SECONDS = 240.0
"""`tidemark up --stop` waits for three minutes at most."""

FIGURE = re.compile(r"(?:\d+[hm])*\d[\d.,]*s\b|none|\d[\d.,]*")
"""Durations, counts and parts of times, which differ from run to run."""

ANY_FIGURE = r"(?:none|\d[\d.,hm]*s?)"


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    saved_as: str | None
    """The name under which the reader is told to save it."""


def blocks() -> Iterator[Block]:
    end = 0
    for found in FENCE.finditer(PAGE):
        names = SAVED.findall(PAGE[end : found.start()])
        yield Block(found[1], found[2], names[-1] if names else None)
        end = found.end()


def pattern_of(shown: str) -> re.Pattern[str]:
    """The page's output as a pattern: `…` is anything, as is what lies between lines; figures and spaces differ."""
    lines = []
    for line in shown.splitlines():
        parts = [FIGURE.split(part.strip()) for part in line.split("…")]
        fixed = [ANY_FIGURE.join(re.escape(text) for text in part) for part in parts]
        lines.append(".*?".join(fixed).replace(r"\ ", r"\s+"))
    return re.compile(".*?".join(lines), re.DOTALL)


def with_settings(text: str, changes: str) -> str:
    """A settings file with the lines that the page shows: a setting's line is replaced, a new section is added."""
    for section, lines in re.findall(r"^(\[[\w.]+\])\n((?:[^\[\n].*\n)+)", changes, re.MULTILINE):
        head, found, rest = text.partition(f"\n{section}")
        if not found:
            text += f"\n{section}\n{lines}"
            continue
        body, mark, after = rest.partition("\n[")
        if section == "[message.fields]":  # the page says to replace what is there
            body = "\n"
        for line in lines.splitlines():
            body, replaced = re.subn(rf"^{line.split()[0]} = .*$", line, body, count=1, flags=re.MULTILINE)
            if not replaced:
                body += f"\n{line}\n"
        text = head + found + body + mark + after
    return text


class Terminal:
    """A shell, to which commands are typed one after the other."""

    def __init__(self, folder: Path, said: Path) -> None:
        self.said, self.typed = said, 0
        environment = os.environ | {"COLUMNS": "160", "TIDEMARK_PUBSUB__EMULATOR": "local"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        self.shell = subprocess.Popen(
            ["/bin/bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=said.open("wb"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> int:
        """Type a command, and return where its output begins."""
        begins = len(self.said.read_text())
        self.typed += 1
        self.shell.stdin.write(f"{command}\necho '[done' {self.typed}]\n")
        self.shell.stdin.flush()
        return begins

    def output(self, begins: int) -> tuple[str, bool]:
        """What was printed since, and whether the command has ended."""
        said = self.said.read_text()[begins:]
        return said, f"[done {self.typed}]" in said

    def close(self) -> None:
        self.shell.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.shell.wait(STOPPED_WITHIN_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)


def see(terminal: Terminal, command: str, shown: str, *, again: bool) -> None:
    """Type a command, again and again if need be, until it prints what the page shows."""
    until, begins = time.monotonic() + PATIENCE_SECONDS, terminal.type(command)
    while True:
        said, has_ended = terminal.output(begins)
        if pattern_of(shown).search(said) and (has_ended or not again):
            return
        assert time.monotonic() < until, f"{command}\nprinted\n{said}\nand not\n{shown}"
        if has_ended and again:
            time.sleep(5)
            begins = terminal.type(command)
        time.sleep(0.5)


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    first = free_port(count=max(PORTS.values()) + 1)
    ours = {default: str(first + place) for default, place in PORTS.items()}
    steps, folder = list(blocks()), tmp_path
    terminals = [Terminal(tmp_path, tmp_path / "first.log"), Terminal(tmp_path, tmp_path / "second.log")]
    try:
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if step.saved_as:
                (folder / step.saved_as).write_text(step.text)
            elif step.language == "toml":
                settings = folder / "tidemark.toml"
                settings.write_text(with_settings(settings.read_text(), step.text))
            elif step.language == "sh":
                command, shown = step.text.strip(), ""
                if following is not None and following.language == "text":
                    shown = re.sub("|".join(ours), lambda found: ours[found[0]], following.text)
                command = re.sub("|".join(ours), lambda found: ours[found[0]], command)
                command = command.replace("--topic orders", f"--topic orders --ports {first}")
                is_up = command == "tidemark up"
                if is_up and not terminals[0].typed:
                    terminals[0].type(f"cd {folder}")
                see(terminals[0 if is_up else 1], command, shown, again=not is_up and "python" not in command)
                if "cd orders" in command:
                    folder = tmp_path / "orders"
    finally:
        terminals[1].type(f"cd {folder}; tidemark up --stop")
        for terminal in reversed(terminals):
            terminal.close()
