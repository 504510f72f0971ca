"""When a demonstration is called right."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemark.local.demo.summary import Summary
from tidemark.local.demo.synthetic import Published
from tidemark.local.demo.verification import TruthComparison

NOTHING = dict.fromkeys(("differences", "late", "missed", "quarantine_differences"), 0)
RIGHT = {"rows": 99, "expected_rows": 99, **NOTHING, "quarantined": {"NO_EVENT_TIME": 1}}


def is_right(found: dict[str, Any]) -> bool:
    published = cast("Published", SimpleNamespace(broken={"NO_EVENT_TIME": 1, "NO_STREAM_ID": 0}))
    return Summary(published, cast("TruthComparison", SimpleNamespace(**found)), None, None, 90, 9.0, 60.0).is_right


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 98},
        {"rows": 0, "expected_rows": 0},
        *({name: 1} for name in NOTHING),
        {"quarantined": {}},
        {"quarantined": {"NO_EVENT_TIME": 1, "IN_THE_FUTURE": 1}},
    ],
    ids=str,
)
def test_only_the_truth_is_right(wrong: dict[str, object]) -> None:
    assert is_right(RIGHT)
    assert not is_right({**RIGHT, **wrong})
