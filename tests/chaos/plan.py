"""Which faults at which moments: pure, told by a seed."""

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

KILL_GAP_SECONDS = (10.0, 24.0)
"""Between two kills: some things are still coming back when the next is killed, and not everything is always down."""

SPELL_GAP_SECONDS = 5.0
"""Between two troubles: what the source could not send during a pause it has sent before the next, so that the topic's
disorder stays below one pause and the source's jitter."""


class Target(StrEnum):
    """What is killed. The first three are services, by the names that `tidemark up` gives them."""

    DAEMON = "Dagster daemon"
    CODE_SERVER = "Dagster code server"
    SPARK = "Spark Connect"
    RUN = "run worker"
    READER = "reader"


SERVICES = (Target.DAEMON, Target.CODE_SERVER, Target.SPARK)


class Trouble(StrEnum):
    """What lasts for a while."""

    PAUSED = "emulator paused"
    DISK_FULL = "disk full"
    SECOND_DAEMON = "second daemon"
    SECOND_PIPELINE = "second pipeline"


LASTING_SECONDS = {
    Trouble.PAUSED: (12.0, 15.0),  # longer than an ack deadline of ten seconds, so that leases expire
    Trouble.DISK_FULL: (15.0, 25.0),
    Trouble.SECOND_DAEMON: (25.0, 35.0),
    Trouble.SECOND_PIPELINE: (30.0, 40.0),  # a third of it is its start
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A `kill -9`, seconds after the first moment at which everything ran."""

    at: float
    target: Target


@dataclass(frozen=True, slots=True)
class Spell:
    """A trouble, from `at` on, for so many seconds."""

    at: float
    trouble: Trouble
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is to happen. Kills and spells are each in their order; spells do not overlap."""

    seed: int
    kills: tuple[Kill, ...]
    spells: tuple[Spell, ...]


def plan_of(
    seed: int,
    kills: int,
    troubles: tuple[Trouble, ...],
    targets_of: tuple[Target, ...] = tuple(Target),
    gap_seconds: tuple[float, float] = KILL_GAP_SECONDS,
) -> Plan:
    """The plan of a seed: every target about equally often, and each trouble somewhere in its share of the time.
    Readers are killed in the first half, while there is a backlog."""
    random = Random(seed)
    targets: list[Target] = []
    while len(targets) < kills:
        targets += random.sample(targets_of, len(targets_of))
    targets = targets[:kills]
    readers = targets.count(Target.READER)
    targets = [target for target in targets if target is not Target.READER]
    for _ in range(readers):
        targets.insert(random.randint(0, max(0, kills // 2 - 1)), Target.READER)
    moments, at = [], 0.0
    for _ in range(kills):
        at += random.uniform(*gap_seconds)
        moments.append(round(at, 1))
    share = at / max(1, len(troubles))
    spells: list[Spell] = []
    for number, trouble in enumerate(random.sample(troubles, len(troubles))):
        lasting = random.uniform(*LASTING_SECONDS[trouble])
        begin = share * number + random.uniform(0, max(0.0, share - lasting))
        begin = max(begin, spells[-1].at + spells[-1].seconds + SPELL_GAP_SECONDS if spells else 0.0)
        spells.append(Spell(round(begin, 1), trouble, round(lasting, 1)))
    return Plan(seed, tuple(map(Kill, moments, targets)), tuple(spells))


def without(plan: Plan, trouble: Trouble) -> Plan:
    """The same at the same moments, but for one trouble."""
    return replace(plan, spells=tuple(spell for spell in plan.spells if spell.trouble is not trouble))
