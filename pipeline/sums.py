"""Values that add up field by field: what several steps did is the sum of what each of them did."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Self

HOW = "how values add up"


class Sums:
    """A data class whose values add up: each field by `+`, unless its metadata say another way."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        """Both together."""
        every = fields(self)  # type: ignore[arg-type]  # those who inherit are data classes
        return type(self)(
            *(one.metadata.get(HOW, operator.add)(getattr(self, one.name), getattr(other, one.name)) for one in every)
        )


def oldest_of(*moments: datetime | None) -> datetime | None:
    """The oldest of those that are known."""
    return min((moment for moment in moments if moment is not None), default=None)


def newest_of(*moments: datetime | None) -> datetime | None:
    """The newest of those that are known."""
    return max((moment for moment in moments if moment is not None), default=None)


def _by(how: Callable[..., Any]) -> Mapping[str, Any]:
    return {HOW: how}


OLDEST, NEWEST = _by(oldest_of), _by(newest_of)
EITHER = _by(lambda one, other: one or other)
"""Metadata of fields that add up in these ways."""
