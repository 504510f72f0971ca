"""Faults planted on purpose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from pipeline.ticks.landing import land
from pipeline.ticks.tracking import track
from pipeline.watermark.policy import Policy
from tests.simulation.micro_batch import MicroBatch


@dataclass(frozen=True)
class Planted:
    name: str
    found_within: int = 0
    policy: Callable[[Policy], Policy] = lambda policy: policy
    track: Callable[..., Any] = track
    land: Callable[..., Any] = land
    micro_batch: Callable[..., MicroBatch] = MicroBatch
    patches: tuple[tuple[str, Any], ...] = ()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, replacement in self.patches:
                stack.enter_context(patch(target, replacement))
            yield


AS_IT_IS = Planted("as it is")
PLANTED = {}
