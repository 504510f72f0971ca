"""`tidemark pubsub`: serve tidemark's own in-memory Pub/Sub on loopback."""

import random
from dataclasses import fields, replace
from datetime import timedelta
from threading import Event
from typing import Annotated, Any

from tidemark.local.emulator.faults import LIKE_THE_SERVICE, Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.cli.options import option
from tidemark.pipeline.clock import SystemClock, parse_duration, to_us
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.machine import is_loopback
from tidemark.pipeline.settings import load_settings

DEFAULT = "127.0.0.1:8085"
"""The default address, which is also the default of Google's emulator."""

WAKES_EVERY_SECONDS = 1.0
"""Maximum number of seconds until the main thread notices a signal that another thread received."""

FAULT_NAMES = tuple(field.name for field in fields(Faults))


def pubsub(
    port: Annotated[
        int | None, option("The port, by default that of pubsub.emulator_host; 0: any free port.", min=0, max=65535)
    ] = None,
    host: Annotated[str | None, option("The address, on loopback; by default that of pubsub.emulator_host.")] = None,
    seed: Annotated[int | None, option("The seed for drawing faults at random.")] = None,
    fault: Annotated[
        list[str] | None,
        option(f"A fault to inject; repeat for more. Names: {', '.join(FAULT_NAMES)}.", metavar="NAME=VALUE"),
    ] = None,
    like_the_service: Annotated[
        bool, option("Inject the normal faults of Google's service, at a higher rate.", "--like-the-service")
    ] = False,
) -> None:
    """Serve tidemark's own Pub/Sub on loopback.

    Listens at pubsub.emulator_host, or at 127.0.0.1:8085 if that setting is empty. Supports the features that tidemark
    uses: topics, subscriptions, pulls and streaming pulls, acknowledgements, expiring leases, snapshots and seeks. All
    data is in memory, and is lost when the server stops. A fault is a probability (unavailable=0.01), a duration
    (visible_after=500ms), or true or false (shuffled=true). By default, no faults are injected.
    """
    host, port = listening(host, port)
    if seed is None:
        seed = random.randrange(1 << 32)  # noqa: S311 no secret
    faults = faults_of(fault or [], LIKE_THE_SERVICE if like_the_service else Faults())
    first_id = to_us(SystemClock().now())  # the lake identifies messages by id, so a restart must not reuse ids
    model = PubSubModel(rng=random.Random(seed), faults=faults, first_id=first_id)  # noqa: S311 likewise
    drawn = f"; faults are drawn from seed {seed}" if faults != Faults() else ""
    try:
        with served(model, host=host, port=port) as address:
            print(f"tidemark pubsub: ready at {address}; all data is lost when it stops{drawn}", flush=True)
            while not Event().wait(WAKES_EVERY_SECONDS):
                pass
    except KeyboardInterrupt:  # by Ctrl-C or SIGTERM
        return


def listening(host: str | None, port: int | None) -> tuple[str, int]:
    """Return the host and port to listen on. A missing host or port is taken from `pubsub.emulator_host`. Raises
    InvalidSettings if the address is not on loopback."""
    said = f"--host {host}"
    if host is None or port is None:
        named = load_settings(needs_file=False).pubsub.emulator_host or DEFAULT
        of_host, _, of_port = named.rpartition(":")
        if host is None:
            host, said = of_host, f"pubsub.emulator_host = {named}"
        port = int(of_port) if port is None else port
    if not is_loopback(host):
        raise InvalidSettings(
            f"{said} is not on loopback, but this Pub/Sub has no authentication: name an address such as 127.0.0.1"
        )
    return host, port


def faults_of(written: list[str], faults: Faults) -> Faults:
    """Parse faults that are written as `name=value`. All other faults are taken from `faults`. Raises InvalidSettings
    if a name is unknown or a value is wrong."""
    for one in written:
        name, equals, value = one.partition("=")
        if not equals or name not in FAULT_NAMES:
            raise InvalidSettings(f"--fault {one}: write NAME=VALUE, with one of {', '.join(FAULT_NAMES)}")
        try:
            faults = replace(faults, **{name: _value(name, value)})
        except ValueError as error:
            raise InvalidSettings(f"--fault {one}: {error}") from error
    return faults


def _value(name: str, written: str) -> Any:
    default = getattr(Faults(), name)
    if isinstance(default, bool):
        if written not in ("true", "false"):
            raise ValueError("write true or false")
        return written == "true"
    if isinstance(default, timedelta):
        return parse_duration(written)
    try:
        return float(written)
    except ValueError:
        raise ValueError("write a probability between 0 and 1, such as 0.05") from None
