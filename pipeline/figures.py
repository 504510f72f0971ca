"""Values that are added field by field, and quantiles by one definition for all reported figures."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Self

import numpy as np
import numpy.typing as npt

HOW = "how values add up"


class Sums:
    """Base of data classes that are added field by field: with `+`, or with the function in the field's metadata."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        """Return the sum of all fields."""
        every = fields(self)  # type: ignore[arg-type]  # those who inherit are data classes
        return type(self)(
            *(one.metadata.get(HOW, operator.add)(getattr(self, one.name), getattr(other, one.name)) for one in every)
        )


def oldest_of(*moments: datetime | None) -> datetime | None:
    """Return the oldest of the moments that are not None; None if all are."""
    return min((moment for moment in moments if moment is not None), default=None)


def newest_of(*moments: datetime | None) -> datetime | None:
    """Return the newest of the moments that are not None; None if all are."""
    return max((moment for moment in moments if moment is not None), default=None)


def _by(how: Callable[..., Any]) -> Mapping[str, Any]:
    return {HOW: how}


OLDEST, NEWEST = _by(oldest_of), _by(newest_of)
EITHER = _by(lambda one, other: one or other)
"""Field metadata: the sum is the oldest, the newest, or the first truthy value."""


def quantile(values: npt.ArrayLike, share: float, counts: npt.ArrayLike | None = None) -> float:
    """Return the least value that a `share` of the values do not exceed. It is always one of the values, never
    interpolated.

    `counts` has how often each value occurs, by default once; at least one count must be positive. The median of two
    values is the lower one. Integers stay integers.
    """
    array: npt.NDArray[np.number[Any]] = np.asarray(values)
    weights = np.ones(len(array)) if counts is None else np.asarray(counts, dtype=np.float64)
    found: float = np.quantile(array, share, weights=weights, method="inverted_cdf").item()
    return found
