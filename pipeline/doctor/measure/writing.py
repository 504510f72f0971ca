"""Writes settings into the user's file, keeping its comments, order and other values."""

import os
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item

from tidemark.pipeline.doctor.measure.facts import Setting
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import PREFIX

COMMENT_AT_LEAST = 2
"""The least number of spaces between a value and the comment after it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A setting that was written, its previous value in the file (None if it had none), and the environment variable
    that overrides the file, if any."""

    setting: Setting
    before: str | None
    overridden_by: str | None


def write_settings(file: Path, found: Sequence[Setting]) -> list[Written]:
    """Write the settings into the file, all or none, and return those that changed.

    The file is replaced atomically. If it is a symbolic link, its target is replaced. Raises InvalidSettings if the
    file cannot be read or written.
    """
    target = file.resolve()
    try:
        with target.open(encoding="utf-8", newline="") as opened:
            text = opened.read()
        document, meaning = tomlkit.parse(text), tomllib.loads(text)
        written: list[Written] = []
        for setting in found:
            meaning.setdefault(setting.section, {})[setting.key] = setting.value
            written += _set(document, setting)
        if written:
            _replace(target, tomlkit.dumps(document), meaning)
    except (OSError, ValueError, TOMLKitError) as error:
        raise InvalidSettings(
            f"the settings file {file} could not be written: {error}; nothing in it was changed. Write the settings "
            "above by hand"
        ) from error
    return written


def _set(document: tomlkit.TOMLDocument, setting: Setting) -> Iterator[Written]:
    """Set one setting unless the file already has the value. A comment after the old value keeps its column."""
    section = document.setdefault(setting.section, tomlkit.table())
    before = section.get(setting.key)
    if before == setting.value:
        return
    section[setting.key] = setting.value
    item = section[setting.key]
    if isinstance(before, Item) and isinstance(item, Item) and item.trivia.comment:
        longer = len(item.as_string()) - len(before.as_string())
        item.trivia.comment_ws = " " * max(COMMENT_AT_LEAST, len(item.trivia.comment_ws) - longer)
    variable = f"{PREFIX}{setting.section}__{setting.key}".upper()
    yield Written(setting, None if before is None else str(before), variable if variable in os.environ else None)


def _replace(target: Path, text: str, meaning: dict[str, Any]) -> None:
    """Replace the file with `text`. Raises ValueError if `text` does not parse to `meaning`."""
    if tomllib.loads(text) != meaning:
        raise ValueError("its form is too unusual")
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
        os.chmod(name, target.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
