"""What one seed means for continuous landing: who plays rounds, beside what, and what goes wrong with Spark's tasks."""

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from tidemark.pipeline.ingest.budget import Budget


@dataclass(frozen=True, slots=True)
class Rounds:
    """Continuous landing: `drivers` that each play rounds of so many readers. `beside` says what ticks do meanwhile:
    the same as ever, nothing but deciding, or pulling while no round is under way. Chances are of a task: that its
    answer is lost and it is tried again, and that two attempts run at once, of which one is used."""

    drivers: int
    landers: int
    trackers: int
    beside: Literal["ticks", "deciders", "ticks in between"]
    in_a_run: int
    budget: Budget
    answer_lost: float
    twice: float


def rounds_of(rng: random.Random, *, troubled: bool) -> Rounds:
    """Drawn by these random numbers; without trouble each task is tried once."""
    batch = rng.choice([3, 10, 100])
    return Rounds(
        drivers=rng.choice([1, 1, 2]),
        landers=rng.choice([1, 2, 3]),
        trackers=rng.choice([1, 2, 3]),
        beside=rng.choice(["ticks", "deciders", "deciders", "ticks in between"]),
        in_a_run=rng.choice([1, 3, 10]),
        budget=Budget(rng.choice([batch, 1000]), 1 << 20, timedelta(seconds=rng.choice([1, 2, 5])), batch),
        answer_lost=rng.choice([0, 0.1, 0.3]) if troubled else 0.0,
        twice=rng.choice([0, 0.1, 0.3]) if troubled else 0.0,
    )
