"""The two subscriptions, by name."""

from enum import StrEnum


class Side(StrEnum):
    """Which of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"
