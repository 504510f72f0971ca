"""The base of the settings' sections, and the types that several of them use."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import urlparse

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from tidemark.pipeline.durations import Duration

ZERO = timedelta(0)
DAY = timedelta(days=1)
CENTURY = timedelta(days=36_500)
FILTER_BYTES = 256


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _http_address(text: str | None) -> str | None:
    """Validate an address that paths are appended to. A login in it would be a secret in a file."""
    if text is None:
        return None
    named = urlparse(text)
    if named.scheme not in ("http", "https") or not named.hostname or named.query or named.fragment:
        raise ValueError("write an address such as https://dagster.example.com or http://127.0.0.1:3000/prefix")
    if named.username is not None or named.password is not None:
        raise ValueError("write the address without a login; $TIDEMARK_DAGSTER_HEADERS may hold one")
    return text.rstrip("/")


def _host_and_port(text: str | None) -> str | None:
    host, _, port = (text or "").rpartition(":")
    if text is not None and not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError("write the address as host:port, such as 127.0.0.1:8085, or leave it empty")
    return text


def is_address(text: str) -> bool:
    """True for an address with a scheme, such as gs://; false for a path on this machine."""
    return len(urlparse(text).scheme) > 1


EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)
Positive = Annotated[Duration, Field(gt=ZERO)]
NotNegative = Annotated[Duration, Field(ge=ZERO)]
OptionalBound = Annotated[Annotated[Duration, Field(gt=ZERO, le=CENTURY)] | None, EmptyIsNone]
OptionalDuration = Annotated[NotNegative | None, EmptyIsNone]
KeptDays = Annotated[Annotated[Duration, Field(ge=DAY)] | None, EmptyIsNone]
TickLong = Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10))]
OptionalText = Annotated[str | None, EmptyIsNone]


def _short_filter(value: str) -> str:
    if (size := len(value.strip().encode())) > FILTER_BYTES:
        raise ValueError(f"this filter has {size} bytes, and Pub/Sub takes at most {FILTER_BYTES}")
    return value.strip()


FilterText = Annotated[str, AfterValidator(_short_filter)]
OptionalAddress = Annotated[str | None, AfterValidator(_host_and_port), EmptyIsNone]
OptionalUrl = Annotated[str | None, AfterValidator(_http_address), EmptyIsNone]
OptionalAccount = Annotated[Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")] | None, EmptyIsNone]


class Effect(StrEnum):
    """The effect of a changed setting on a pipeline that has a lake, once its processes have started again."""

    NEXT = "next"
    """It applies from now on. What has landed, was decided or was computed stays as it is."""
    REQUEUE = "requeue"
    """It applies to messages judged from now on. Landed heartbeats stay; `tidemark quarantine --requeue` judges
    rejected messages again."""
    RECOMPUTE = "recompute"
    """It applies to windows computed from now on. `tidemark repair --recompute` recomputes earlier ones."""
    DUE = "due"
    """All windows of the table are recomputed automatically."""
    DELETES = "deletes"
    """The next run deletes what is older; `tidemark housekeep --dry-run` shows what that is. A longer time restores
    nothing."""
    CREATION = "at creation"
    """Existing subscriptions keep what they were created with; `tidemark provision` and `tidemark doctor` name the
    `gcloud` command that changes them."""
    ANEW = "anew"
    """It names another place, where tidemark begins empty. What was kept under the earlier name stays there."""
    REFUSED = "refused"
    """The change is an error. Put the value back, or follow the section below."""


class Section(BaseModel):
    """A section of the settings. It refuses unknown keys and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    effect: ClassVar[Effect] = Effect.NEXT
    """The effect of a change, for settings that are not annotated with another."""

    @classmethod
    def effect_of(cls, name: str) -> Effect:
        """Return the effect of changing a setting, by its field's name."""
        own = [mark for mark in cls.model_fields[name].metadata if isinstance(mark, Effect)]
        return own[0] if own else cls.effect

    @field_validator("*")
    @classmethod
    def _without_control_characters(cls, value: object) -> object:
        """Refuse control characters, which no name, path or address has; NUL would end a path."""
        texts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and CONTROL.search(text) for text in texts):
            raise ValueError("write it without control characters, such as NUL or a line break")
        return value
