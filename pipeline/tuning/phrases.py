"""Shares, durations and lags as a person reads them."""

from datetime import timedelta

from pipeline.durations import format_duration


def percent(share: float) -> str:
    """`0.52 %`, three digits at most; `none` for nothing, and never `0 %` for something."""
    if not share:
        return "none"
    return f"{float(f'{share * 100:.3g}'):f}".rstrip("0").rstrip(".") + " %"


def at_most(target: float) -> str:
    """A target as a person says it."""
    return f"at most {percent(target)} late" if target else "nothing late"


def words(seconds: float) -> str:
    """Seconds to a tenth: `14.2s`, `1m8s`."""
    return format_duration(timedelta(seconds=round(seconds, 1)))


def stands(lag_seconds: float) -> str:
    """Where the watermark is: `14.2s behind`; before a clock that others run ahead of, `46.3s ahead of now`."""
    return f"{words(lag_seconds)} behind" if lag_seconds >= 0 else f"{words(-lag_seconds)} ahead of now"
