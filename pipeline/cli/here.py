"""The settings, the clock and the lake of a command, and errors that several commands raise."""

from dataclasses import dataclass

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.errors import BaseReadByOthers, LakeError
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Here:
    settings: Settings
    clock: Clock
    lake: OpenLake


def here(landing: str = "") -> Here:
    """Read the settings and open the lake. A command that needs landed messages passes its name as `landing`. Raises
    BaseReadByOthers if such a command runs with `pubsub.attach`."""
    settings, clock = load_settings(), SystemClock()
    if landing:
        refuse_attached(settings, landing)
    return Here(settings, clock, lake_of(settings, clock))


def lake_of(settings: Settings, clock: Clock | None = None) -> OpenLake:
    """Open the lake that the settings name."""
    return OpenLake(settings.lake, settings.message.kinds, clock or SystemClock())


def refuse_attached(settings: Settings, command: str) -> None:
    """Raise BaseReadByOthers if `pubsub.attach` is set, because nothing lands then."""
    if settings.pubsub.attach:
        raise BaseReadByOthers(
            f"`tidemark {command}` needs landed messages, but with pubsub.attach = true another consumer reads "
            f"{settings.pubsub.base_path}: nothing lands, and only that consumer can acknowledge messages"
        )


def no_decision(settings: Settings) -> LakeError:
    """Return the error for a lake without any decision. Raises CorruptObject if the decisions were lost."""
    lake_of(settings).tracking_log().catch_up_to_append()
    start = "attach" if settings.pubsub.attach else "up"
    return LakeError(
        f"no decision has been made in {settings.lake.uri} yet; start the pipeline with `tidemark {start}`, and try "
        "again after the first tick"
    )


def no_window(settings: Settings) -> LakeError:
    """Return the error for a lake without any computed window."""
    return LakeError(f"no window has been computed in {settings.lake.uri} yet; `tidemark status` shows what is waiting")
