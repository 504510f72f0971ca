"""What a transaction of a round says of itself, so that its commit names who made it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tidemark.pipeline.errors import ObjectMissing
from tidemark.pipeline.lake.tables.delta_log import read_commit
from tidemark.pipeline.lake.tables.table import LakeTable

RUN, ROUND = "tidemark.run", "tidemark.round"

COMMITS = 5
"""Commits that are looked at: those of ticks, requeues and compactions may be the newest."""


@dataclass(frozen=True, slots=True)
class LastRound:
    """The run and the number of a round, and when its transaction was made."""

    run: str
    number: int
    at: datetime


def says_of(run: str, number: int) -> Mapping[str, str]:
    """What a round's transaction says of itself."""
    return {RUN: run, ROUND: str(number)}


def last_round(table: LakeTable) -> LastRound | None:
    """The newest round that landed anything, if it is among the newest commits. Raises LakeError."""
    current = table.current()
    if current is None:
        return None
    newest = current.version()
    for version in range(newest, max(newest - COMMITS, -1), -1):
        try:
            commit = read_commit(table, version)
        except ObjectMissing:  # the log was cut
            return None
        if ROUND in commit.says and commit.at is not None:
            return LastRound(commit.says[RUN], int(commit.says[ROUND]), commit.at)
    return None
