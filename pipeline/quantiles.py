"""Quantiles, by one definition for every figure that a report shows: the inverted distribution function."""

from typing import Any

import numpy as np
import numpy.typing as npt


def quantile(values: npt.ArrayLike, share: float, counts: npt.ArrayLike | None = None) -> float:
    """The least of the values that `share` of them do not exceed: always a value that occurs, never one in between.

    `counts` says how often each value occurs, by default once; at least one must. The median of two values is the
    lower one. Integers stay integers.
    """
    array: npt.NDArray[np.number[Any]] = np.asarray(values)
    weights = np.ones(len(array)) if counts is None else np.asarray(counts, dtype=np.float64)
    found: float = np.quantile(array, share, weights=weights, method="inverted_cdf").item()
    return found
