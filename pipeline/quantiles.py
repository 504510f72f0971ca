"""Quantiles by one definition for all reported figures: the inverted cumulative distribution function."""

from typing import Any

import numpy as np
import numpy.typing as npt


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
