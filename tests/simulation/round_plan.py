"""What one seed means for rounds: who plays them, beside what, and what goes wrong with Spark's tasks."""

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

CALM_ROUND = timedelta(seconds=0.4)
"""How long a round takes once it is calm: a fraction of a tick."""


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """`drivers` that each play runs of rounds with so many `readers`. `beside` says what ticks do meanwhile: the same
    as ever, nothing but deciding, or pulling while no round is under way.

    A run takes `run_for`, unless it stops before because it is `until_young`, below `stop_below`. In a round a reader
    takes so many `messages` at most, within the time `round_takes`. Chances are of a task: that its answer is lost and
    it is tried again, and that two attempts run at once, of which one is used.
    """

    drivers: int
    readers: int
    beside: Literal["ticks", "deciders", "ticks in between"]
    run_for: timedelta
    until_young: bool
    stop_below: timedelta
    round_takes: timedelta
    messages: int
    batch_messages: int
    answer_lost: float
    twice: float

    @property
    def calm_run(self) -> timedelta:
        """How long a run takes once it is calm. A single reader reads tracking in every other round."""
        return CALM_ROUND * (1.5 if self.readers == 1 else 0.5)


def rounds_of(rng: random.Random, *, troubled: bool) -> RoundsPlan:
    """Drawn by these random numbers; without trouble each task is tried once."""
    batch = rng.choice([3, 10, 100])
    round_takes = timedelta(seconds=rng.choice([1, 2, 5]))
    return RoundsPlan(
        drivers=rng.choice([1, 1, 2]),
        readers=rng.choice([1, 2, 3, 4, 5, 8]),
        beside=rng.choice(["ticks", "deciders", "deciders", "ticks in between"]),
        run_for=rng.choice([1, 10, 60]) * round_takes,
        until_young=rng.random() < 0.3,
        stop_below=timedelta(seconds=rng.choice([1, 5, 30])),
        round_takes=round_takes,
        messages=rng.choice([batch, 1000]),
        batch_messages=batch,
        answer_lost=rng.choice([0, 0.1, 0.3]) if troubled else 0.0,
        twice=rng.choice([0, 0.1, 0.3]) if troubled else 0.0,
    )
