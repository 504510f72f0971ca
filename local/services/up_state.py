"""Lets a process inspect and stop a `tidemark up` that runs in another process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidemark.local.services.own_files import SPARK_CONNECT
from tidemark.local.services.processes import STATE_FILE, Supervisor, noted_in
from tidemark.local.services.stack import EMULATOR, WARM_UP, dagster_services
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.machine import ProcessName, listens
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.session import host_and_port

STOPS_WITHIN_SECONDS, SAY_EVERY_SECONDS, LOOK_EVERY_SECONDS = 180.0, 10.0, 0.2
"""Maximum wait for `tidemark up` to end, interval between progress messages, and interval between checks. The maximum
allows each of five services ten seconds to end and ten more after a kill. It also allows a starting `tidemark up` to
complete its current step."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service that `tidemark up` has started, and whether it still runs and is ready."""

    name: str
    process: ProcessName
    runs: bool
    is_ready: bool


def up_state(settings: Settings) -> tuple[ProcessName | None, list[ServiceState]]:
    """Return the process of the `tidemark up` with these settings (None if it is not running), and the services that it
    has started, except a finished warm-up. Raises the errors of `noted_in`."""
    noted, serves = noted_in(settings.dagster.state_folder), _probes(settings)
    services = []
    for name, process in noted.services.items():
        if (runs := process.runs()) or name != WARM_UP:
            # The kernel accepts connections to the port of a paused process, so its probe would succeed.
            is_ready = runs and not process.is_paused() and serves.get(name, lambda: True)()
            services.append(ServiceState(name, process, runs, is_ready))
    return noted.living_owner(), services


def stop_up(settings: Settings, clock: Clock, say: Callable[[str], None]) -> None:
    """Stop the `tidemark up` with these settings, and wait for its end. If it was killed, end the services that it left
    running. Only recorded processes, identified by process id and start time, and their descendants are ended.

    Raises NewerFormat, and ServiceFailed if `tidemark up` does not end in time or belongs to another user.
    """
    folder = settings.dagster.state_folder
    owner = noted_in(folder).living_owner()
    if owner is not None and (process := owner.running()) is not None:
        say(f"asking process {owner.process} to stop")
        try:
            process.resume()  # while it is paused, it does not act on a signal
            process.terminate()
        except psutil.AccessDenied as error:
            raise ServiceFailed(
                f"process {owner.process} belongs to another user: ask that user to run `tidemark up --stop`"
            ) from error
        _wait(owner, folder, clock, say)
    left = noted_in(folder).services  # none in a copy of the folder
    if (folder / STATE_FILE).exists():
        supervisor = Supervisor(folder, clock, say)
        supervisor.take_over()
        supervisor.stop()
    if left:
        say("stopped the services that an earlier `tidemark up` left running")
    else:
        say("stopped" if owner is not None else f"nothing runs in {folder}")


def _wait(owner: ProcessName, folder: Path, clock: Clock, say: Callable[[str], None]) -> None:
    began = said = clock.monotonic()
    while owner.runs():
        now = clock.monotonic()
        if now - began > STOPS_WITHIN_SECONDS:
            raise ServiceFailed(
                f"process {owner.process} has not ended within {STOPS_WITHIN_SECONDS:g} s. Look at {folder}/logs, or "
                f"end the process with `kill -9 {owner.process}`, and then its services with `tidemark up --stop`"
            )
        if now - said >= SAY_EVERY_SECONDS:
            said = now
            alive = ", ".join(noted_in(folder).alive())
            say(f"waiting for process {owner.process}, {now - began:.0f} s; still running: {alive or 'no service'}")
        clock.sleep(LOOK_EVERY_SECONDS)


def _probes(settings: Settings) -> Mapping[str, Callable[[], bool]]:
    """Return each service's readiness test, keyed by service name."""
    host, _, port = (settings.pubsub.emulator_host or "").rpartition(":")
    found = {spec.name: spec.is_ready for spec in dagster_services(settings, {}, Path())}
    found[EMULATOR] = lambda: listens(host, int(port))
    found[SPARK_CONNECT] = lambda: listens(*host_and_port(settings.spark.remote))
    return found
