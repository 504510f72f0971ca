"""The cells that hold the watermark: with a `max_lag`, those in which a message may lag no more than that.

The lag of a message is its publish time less its event time. A cell knows when its first message was published, and
that all event times are before the end of its event bucket. So it is passed over only if all its messages certainly lag
more than `max_lag`: a message that lags no more never is, and one that lags two seconds more always is.
"""

from datetime import timedelta

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.watermark.histogram import BUCKET_US, COPY, Histogram, Ints


def holding(histogram: Histogram, max_lag: timedelta | None) -> Histogram:
    """Keep the cells that hold, and the rejected messages. `newest_publish_us` is that of the cells that hold.

    Assumption: the newest cell that holds was not pruned, which `reachable_from` sees to.
    """
    if max_lag is None:
        return histogram
    return histogram.only(~_is_passed_over(histogram, max_lag))


def passed_over(histogram: Histogram, max_lag: timedelta | None, positions: Ints | None = None) -> int:
    """Count the messages that are passed over, in all cells or in those at `positions`; an upper bound."""
    if max_lag is None:
        return 0
    over = _is_passed_over(histogram, max_lag)
    wanted = over if positions is None else positions[over[positions]]
    return int(histogram.count[wanted].sum())


def _is_passed_over(histogram: Histogram, max_lag: timedelta) -> npt.NDArray[np.bool_]:
    is_timed = histogram.event_bucket > COPY
    ends_us = (np.where(is_timed, histogram.event_bucket, 0) + 1) * BUCKET_US
    over: npt.NDArray[np.bool_] = is_timed & (histogram.first_publish_us - ends_us >= duration_us(max_lag))
    return over
