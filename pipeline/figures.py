"""Data classes that add up field by field, the quantile for all reported figures, and a format for counts."""

import operator
from dataclasses import fields
from datetime import datetime
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

HOW = "how values add up"


class Sums:
    """The base of data classes that add up field by field, with `+` or with the function in the field's metadata."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        """Return the sum of both objects, field by field."""
        every = fields(self)  # type: ignore[arg-type]  # subclasses are data classes
        return type(self)(
            *(one.metadata.get(HOW, operator.add)(getattr(self, one.name), getattr(other, one.name)) for one in every)
        )


Moment = TypeVar("Moment", int, datetime)


def oldest_of(*moments: Moment | None) -> Moment | None:
    """Return the oldest moment, ignoring None; None if there is no moment."""
    return min((moment for moment in moments if moment is not None), default=None)


def newest_of(*moments: Moment | None) -> Moment | None:
    """Return the newest moment, ignoring None; None if there is no moment."""
    return max((moment for moment in moments if moment is not None), default=None)


OLDEST, NEWEST = {HOW: oldest_of}, {HOW: newest_of}
EITHER = {HOW: lambda one, other: one or other}
"""OLDEST, NEWEST and EITHER are metadata for a field of `Sums`. The field's sum is then the oldest time, the newest
time, or the first truthy value."""


def quantile(values: npt.ArrayLike, share: float, counts: npt.ArrayLike | None = None) -> float:
    """Return the smallest value such that at least the fraction `share` of all values is at or below it. Never
    interpolates.

    `counts` says how often each value occurs, by default once. At least one count must be positive. The median of two
    values is the lower value. Integers stay integers.
    """
    array: npt.NDArray[np.number[Any]] = np.asarray(values)
    weights = np.ones(len(array)) if counts is None else np.asarray(counts, dtype=np.float64)
    found: float = np.quantile(array, share, weights=weights, method="inverted_cdf").item()
    return found


def counted(number: int, thing: str, least: int | None = None) -> str:
    """Format a number with the name of what it counts, such as `1 message` or `2,000 messages`. If `least` differs from
    the number, the result is a range, such as `3 to 5 messages`."""
    begin = "" if least in (None, number) else f"{least:,} to "
    return f"{begin}{number:,} {thing}{'' if number == 1 else 's'}"
