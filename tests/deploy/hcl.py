"""Terraform's language as far as deploy/terraform uses it: blocks within blocks, and arguments."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

OPENS = re.compile(r'(?P<type>\w+)(?P<labels>(?: "[^"]+")*) \{')
SETS = re.compile(r"(?P<name>\w+)\s*=\s*(?P<value>.+)")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass
class Block:
    """`type "label" ... { arguments, and blocks }`; an argument's value is its text."""

    type: str
    labels: list[str]
    arguments: dict[str, str] = field(default_factory=dict)
    blocks: list["Block"] = field(default_factory=list)

    def one(self, type_: str) -> "Block":
        (found,) = [block for block in self.blocks if block.type == type_]
        return found


def parsed(folder: Path) -> Block:
    """All files of a module as one block. Raises AssertionError with the line that is not understood."""
    whole = Block("module", [])
    for file in sorted(folder.glob("*.tf")):
        lines = iter([line for text in file.read_text().splitlines() if (line := _bare(text))])
        _fill(whole, lines, file.name)
    return whole


def _fill(block: Block, lines: Iterator[str], name: str) -> None:
    for line in lines:
        if line == "}":
            return
        if opened := OPENS.fullmatch(line):
            inner = Block(opened["type"], re.findall(r'"([^"]+)"', opened["labels"]))
            _fill(inner, lines, name)
            block.blocks.append(inner)
            continue
        found = SETS.fullmatch(line)
        assert found is not None, f"{name}: {line}"
        value = found["value"]
        while _depth(value):
            value = f"{value} {next(lines)}"
        assert found["name"] not in block.arguments, f"{name}: {line} is set twice"
        block.arguments[found["name"]] = value
    assert block.type == "module", f"{name}: a block is not closed"


def _bare(line: str) -> str:
    """A line without its comment and its indent."""
    without = STRING.sub(lambda text: "x" * len(text[0]), line)
    return line[: without.index("#")].strip() if "#" in without else line.strip()


def _depth(value: str) -> int:
    """How many brackets are open."""
    without = STRING.sub("", value)
    return sum(without.count(one) for one in "([{") - sum(without.count(one) for one in ")]}")
