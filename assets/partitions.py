"""Windows as Dagster's time partitions: the same keys, the same boundaries."""

from datetime import timedelta

import dagster as dg

from pipeline.settings import Settings
from pipeline.windows import KEY_FORMAT

HOUR = timedelta(hours=1)


def window_partitions(settings: Settings) -> dg.TimeWindowPartitionsDefinition:
    """One partition for each window, from the first window on, in UTC."""
    return dg.TimeWindowPartitionsDefinition(
        start=settings.windows.first,
        cron_schedule=cron_of(settings.windows.length),
        fmt=KEY_FORMAT,
        timezone="UTC",
    )


def cron_of(length: timedelta) -> str:
    """The cron schedule whose ticks are the windows' starts. `length` divides a day, and an hour if it is less."""
    if length < HOUR:
        return f"*/{length // timedelta(minutes=1)} * * * *"
    return "0 0 * * *" if length == timedelta(days=1) else f"0 */{length // HOUR} * * *"
