"""Formats shares, durations and lags as text, and makes external text safe to show."""

from datetime import timedelta
from decimal import Decimal

from tidemark.pipeline.clock import format_duration


def printable(text: str, keep: str = "") -> str:
    r"""Escape every non-printable character, except those in `keep`. For example, ESC becomes `\x1b`, and U+202E,
    which reverses the writing direction, becomes `\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)


def percent(share: float) -> str:
    """Format a share with at most three significant digits, such as `0.52 %`. Zero is `none`. No other share is rounded
    to `0 %`, and only 1 is `100 %`: 0.9996 is `99.96 %`."""
    if not share:
        return "none"
    rounded = Decimal(f"{share * 100:.3g}")
    if rounded == 100 and share < 1:
        rounded -= Decimal(f"{(1 - share) * 100:.1g}")
    return f"{rounded:f} %"


def at_most(target: float) -> str:
    """Format a target for the late share: `at most 0.01 % late`, or `nothing late`."""
    return f"at most {percent(target)} late" if target else "nothing late"


def words(seconds: float) -> str:
    """Format seconds, rounded to a tenth: `14.2s`, `1m8s`."""
    return format_duration(timedelta(seconds=round(seconds, 1)))


def lag_text(lag_seconds: float) -> str:
    """Format the watermark's lag: `14.2s behind`, or `46.3s ahead of now` if clocks run fast."""
    return f"{words(lag_seconds)} behind" if lag_seconds >= 0 else f"{words(-lag_seconds)} ahead of now"
