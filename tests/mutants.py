"""Small mutations of the product's ingest that a quick test must notice. `python -m tests.mutants [WORD ...]`.

Each is applied to a copy of the tree in a temporary folder. The exit code is 1 where one survives.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "docs", "logs", "examples", "benchmarks")
SECONDS = 1000
"""A mutant under which the tests take longer does not end: it is noticed."""

SIMULATION = ("tests/simulation/test_replaced_contracts.py", "tests/simulation/test_simulation.py")
_INGEST = ("taking", "held", "landing", "copies", "law", "tracking", "progress")
INGEST = (*(f"tests/ingest/test_{name}.py" for name in _INGEST), *SIMULATION)
NAMED = ("tests/ingest/test_named_landing.py",)
LOG = ("tests/lake/test_tracking_log.py", *SIMULATION)
TABLES = ("tests/lake/test_table_log.py", "tests/lake/test_delta_log.py")
LEASES = ("tests/pubsub/test_leases.py", "tests/pubsub/test_subscription.py")


class Mutant(NamedTuple):
    """What is broken, in which module of `pipeline/`, which text becomes which, and the tests that must notice."""

    what: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...] = INGEST


TAKE, SETTLE, ROUNDS = "ingest/take.py", "ingest/settle.py", "ingest/rounds.py"
TICKS = "ingest/ticks.py"
COUNTING, BY_NAME = "ingest/counting.py", "ingest/source/named.py"
THE_LOG, KEPT = "lake/log/tracking_log.py", "pubsub/leases.py"
A_TABLE, FOLLOWED = "lake/tables/table_log.py", "lake/tables/delta_log.py"
APPEND = "self.log.append(entry, judged_by=_contract(tracked))"
REMEMBER = "self.copies.settle({one.attempt for one in tracked})"
VISIBLE, ACKNOWLEDGE = "make_visible(taken)", "acknowledged = self.subscriptions[side].acknowledge(ack_ids)"
LINE = "\n        "

MUTANTS = (
    Mutant("undecided messages are acknowledged", TAKE, "if position not in apart] if apart else ids", "]"),
    Mutant("what is not looked at is not given back", TAKE, "back += unread", "pass"),
    Mutant("what failed is not given back", TAKE, "subscription.give_back([*ack_ids, *back, *unread])", "pass"),
    Mutant("taking has no end", TAKE, "keeper.is_full or keeper", "keeper"),
    Mutant("who waits goes on waiting", TAKE, "min(waited, patience - waited)", "waited"),
    Mutant("a budget of messages is not spent", TAKE, "messages -= found", "messages -= 0"),
    Mutant("hours have no bound", TAKE, "[: room - half]", ""),
    Mutant("acknowledged before it is visible", SETTLE, f"{VISIBLE}{LINE}{ACKNOWLEDGE}",
           f"{ACKNOWLEDGE}{LINE}{VISIBLE}"),
    Mutant("remembered before it is in the log", SETTLE, f"{APPEND}{LINE}{REMEMBER}", f"{REMEMBER}{LINE}{APPEND}"),
    Mutant("nothing is quarantined", SETTLE, "quarantine.add(", "(lambda *_: None)("),
    Mutant("base asks for no contract", SETTLE, "self.log.refuse_other(_contract(landed))", "pass"),
    Mutant("tracking asks for no contract", SETTLE, APPEND, "self.log.append(entry)"),
    Mutant("what was not settled is not given back", SETTLE, "self.give_back(taken)\n            raise", "raise"),
    Mutant("a driver keeps no leases", ROUNDS, "self.settling.hold(taken)", "pass"),
    Mutant("a lost round is not given back", ROUNDS, "self.settling.give_back(taken[1])", "pass"),
    Mutant("readers are told no watermark", ROUNDS, "sides, watermark, attempts)", "sides, None, attempts)"),
    Mutant("readers are told no attempts", ROUNDS, "sides, watermark, attempts)", "sides, watermark)"),
    Mutant("what rounds used is forgotten", ROUNDS, "self._used = settled.unsaid", "pass"),
    Mutant("B is read before T", TICKS, "tracking, tracking_problem = _reading(",
           "base, base_problem = _reading(backlogs[Side.BASE])\n    tracking, tracking_problem = _reading("),
    Mutant("ticks read no late payload", TICKS, "settling.copies, policy.band", "settling.copies, None"),
    Mutant("readers read no late payload", ROUNDS, "self.copies, self.settings.policy.band", "self.copies, None"),
    Mutant("readers share no bound", ROUNDS, "ROUND_MESSAGES // len(self.sides)", "ROUND_MESSAGES"),
    Mutant("leases are not handed over", ROUNDS, "subscription.give_back(taken.ack_ids, int(", "max(0, int("),
    Mutant("readers remember nothing", ROUNDS, "reader.copies.settle(share.settled)", "pass"),
    Mutant("attempts have no name", ROUNDS, "share.sides[number]))", 'share.sides[number]), exclude={"attempt"})'),
    Mutant("a later first copy is one", COUNTING, "& (self._publish_us[place] <= publish_us)", ""),
    Mutant("every attempt is remembered", COUNTING, "if name in attempts]", "]"),
    Mutant("a manifest that is over is acknowledged", BY_NAME,
           "        if is_over():\n            raise _over(name)\n        subscr", "        subscr", NAMED),
    Mutant("who is second acknowledges", BY_NAME, "            return first\n", "            pass\n", NAMED),
    Mutant("a number that was taken stays", THE_LOG, "if self._was_taken(", "if False and self._was_taken(", LOG),
    Mutant("who was away for long is lost", THE_LOG, "or self._is_before_all(number)", "", LOG),
    Mutant("a lost number ends the entry", THE_LOG, "state = None\n                continue", "return state", LOG),
    Mutant("appending asks for no contract", THE_LOG, "_refuse(judged_by, state.contract)", "pass", LOG),
    Mutant("who is second counts as committed", A_TABLE, "as error:\n            raise errors.TableConflict(",
           "as error:\n            return\n            raise errors.TableConflict(", TABLES),
    Mutant("a writer that was away commits", A_TABLE, "if self._is_copied and not self._is_at_end(table):", "if False:",
           TABLES),
    Mutant("a commit with a number of long ago stays", A_TABLE, "self._withdraw_if_late(table, ", "str((table, ",
           TABLES),
    Mutant("a cached commit is believed", A_TABLE, "if kept and not self._has(start + len(kept) - 1, kept[-1]):",
           "if False:", TABLES),
    Mutant("another table's commits are taken over", A_TABLE, "if not found or found[0] != self.newest:",
           "if not found:", TABLES),
    Mutant("a follower goes on in another table", FOLLOWED, "if found[:1] == [content] and", "if found and", TABLES),
    Mutant("what was let go is leased", KEPT, "if one in self._held]", "]", LEASES),
    Mutant("a failure ends the keeper", KEPT, "except Exception as error", "except OSError as error", LEASES),
)  # fmt: skip


def survives(mutant: Mutant) -> bool:
    """Whether no test notices it. Raises ValueError where its text is not in the module once."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(HERE, tree, ignore=LEFT_OUT)  # it follows links: nothing leads back to the checkout
        module = tree / "src" / "tidemark" / "pipeline" / mutant.module
        text = module.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.module} has {text.count(mutant.old)} times {mutant.old!r}")
        module.write_text(text.replace(mutant.old, mutant.new))
        tests = [test for test in mutant.tests if (tree / test).exists()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            return not subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, timeout=SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return False


def main() -> int:
    words, survivors = sys.argv[1:], list[str]()
    mutants = [one for one in MUTANTS if not words or any(word in one.what for word in words)]
    if not mutants:
        sys.exit(f"no mutant is named by {' '.join(words)}")
    for tests in {one.tests for one in mutants}:
        if not survives(Mutant("nothing", TAKE, "import math", "import math", tests)):
            print(f"without a mutant these fail: {' '.join(tests)}")
            return 1
    for mutant in mutants:
        lives = survives(mutant)
        print(f"{'SURVIVES' if lives else 'noticed '}  {mutant.module}: {mutant.what}", flush=True)
        survivors += [mutant.what] if lives else []
    print(f"{len(survivors)} survive" + "".join(f"\n  {what}" for what in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
