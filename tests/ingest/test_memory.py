"""Hostile messages take a bounded amount of memory, whatever they hold."""

import sys
from pathlib import Path

import pytest

from tests.ingest.memory_of_hostile import KINDS
from tests.programs import ended

MOST_MB = 700
"""Some parts of a batch, as objects, beside what a process has anyway. Whole batches would take gigabytes."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_message_holds_is_judged_in_parts_or_refused_before_it_is_read(kind: str, tmp_path: Path) -> None:
    done = ended([sys.executable, "-m", "tests.ingest.memory_of_hostile", kind, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    grown_mb, landed, rejected = map(int, done.stdout.split())
    assert grown_mb < MOST_MB
    assert (landed, rejected) == {"a value too many": (0, 2), "many values": (45, 0), "submessages": (0, 1)}[kind]
