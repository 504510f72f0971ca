"""`tidemark init`: write the files of a new pipeline."""

import re
import shlex
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from tidemark.local.demo.shapes.shape import ShapeName
from tidemark.local.services import cohort_files, own_files
from tidemark.pipeline.cli.options import moment, option
from tidemark.pipeline.clock import EPOCH, SystemClock, iso
from tidemark.pipeline.settings_sections import LISTEN, PubSubSettings, WindowSettings
from tidemark.pipeline.windows import Windowing


def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write to; created if missing.")] = Path(),
    dagster: Annotated[bool, option("Also write workspace.yaml and dagster.yaml, to be edited.", "--dagster")] = False,
    ports: Annotated[
        int | None,
        option("The first port; others follow.", min=1024, max=65_535 - own_files.MOST_PORTS, metavar="<first port>"),
    ] = None,
    topic: Annotated[str | None, option("The topic: projects/P/topics/T, or a name on the emulator.")] = None,
    first: Annotated[
        str | None, option("The first event time; earlier heartbeats are rejected.", metavar="<today|date|time>")
    ] = None,
    shape: Annotated[ShapeName, option("Write settings for this format of `tidemark publish`.")] = ShapeName.JSON,
    cohort: Annotated[
        list[str] | None, option("Write a project: a pipeline per cohort; repeat for more.", metavar="[NAME=]FILTER")
    ] = None,
) -> None:
    """Write a settings file with every setting explained.

    The settings are for an emulator on this machine, unless --topic names a topic on Google's service, as
    projects/P/topics/T. The subscriptions of a topic T are T-base and T-tracking.

    Two pipelines on one machine need different --ports.

    --cohort writes a project with one pipeline per cohort, and one for all other messages. FILTER is a Pub/Sub filter.
    For example, eu=attributes.region = "eu" defines a cohort with the name eu.
    """
    of_topic = {} if topic is None else _of_topic(topic)
    of_windows = {} if first is None else {"windows.first": _first_setting(first)}
    is_on_service = "emulator_host" in of_topic
    if cohort:
        if dagster or shape is not ShapeName.JSON:
            raise typer.BadParameter("--cohort cannot be combined with --dagster or --shape")
        _init_cohorts(folder, ports, cohort, of_topic, of_windows.get("windows.first"))
        return
    of_dagster = (own_files.WORKSPACE, own_files.INSTANCE) if dagster else ()
    files = {name: own_files.installed_text(name) for name in (own_files.SETTINGS, *of_dagster)}
    settings = files[own_files.SETTINGS]
    if shape is not ShapeName.JSON:
        from tidemark.local.demo.shapes.all_shapes import SHAPES  # imports fastavro

        settings = own_files.with_message(settings, SHAPES[shape].settings)
        files |= SHAPES[shape].files
    of_metrics = {} if ports is None else {"metrics.listen": LISTEN}  # so that each project has its own page
    values = {f"pubsub.{key}": value for key, value in of_topic.items()} | of_windows | of_metrics
    _write_files({**files, own_files.SETTINGS: own_files.with_values(settings, values)}, folder, ports)
    inside = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    publish = "tidemark publish" if shape is ShapeName.JSON else f"tidemark publish --shape {shape}"
    following = f"tidemark up, and in another terminal {publish}, then tidemark status"
    print(f"next: {inside}{'tidemark provision, tidemark doctor, then tidemark up' if is_on_service else following}")


def _write_files(files: Mapping[str, str], folder: Path, ports: int | None) -> None:
    if ports is not None:
        following = count(ports)
        files = own_files.with_ports(files, lambda _: next(following))
    for path in own_files.write_new_files(files, folder):
        print(f"wrote {path}")


def _of_topic(written: str) -> dict[str, str]:
    """Return the settings for a topic. A full name is a topic on Google's service. A name without slashes is a topic on
    the emulator."""
    full = re.fullmatch(r"projects/([^/]+)/topics/([^/]+)", written)
    values = {"project": full[1], "emulator_host": ""} if full else {}
    topic = full[2] if full else written
    values |= {"topic": topic, "base_subscription": f"{topic}-base", "tracking_subscription": f"{topic}-tracking"}
    try:
        PubSubSettings.model_validate(values)
    except ValidationError as error:
        raise typer.BadParameter(
            f"{written} is not a topic: write projects/PROJECT/topics/TOPIC, or TOPIC alone. PROJECT has at "
            "least 3 characters; TOPIC has 3 to 255 letters, digits and -_.~+%, and begins with a letter"
        ) from error
    return values


def _first_setting(written: str) -> str:
    """Convert `today`, a date, or a time with its time zone to a value of the setting `windows.first`."""
    text = f"{SystemClock().now():%Y-%m-%d}" if written == "today" else written
    begins = moment(f"{text}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else text, "neither today nor a time")
    window = Windowing(WindowSettings().length, EPOCH).containing(begins)
    if window.start != begins:
        raise typer.BadParameter(f"{written} is not the start of a window: name a start, such as {iso(window.start)}")
    return f"{begins:%Y-%m-%dT%H:%M:%SZ}"


def _init_cohorts(
    folder: Path, ports: int | None, cohorts: list[str], of_topic: Mapping[str, str], first: str | None
) -> None:
    filters = cohort_files.cohorts_of(cohorts)
    pubsub = PubSubSettings.model_validate({key: of_topic[key] for key in ("project", "topic") if key in of_topic})
    files = cohort_files.project_files(filters, pubsub, first)
    if "emulator_host" in of_topic:
        files = {
            name: own_files.with_values(text, {"pubsub.emulator_host": ""}) if name.endswith(".toml") else text
            for name, text in files.items()
        }
    _write_files(files, folder, ports)
    if "emulator_host" in of_topic:
        print("next: docs/how-to/cohorts.md says what to set up on Google's service")
        return
    print("next, on this machine, with tidemark's own Pub/Sub in a separate terminal:")
    steps = [f"cd {shlex.quote(str(folder))}"] * (folder != Path())
    steps += ["tidemark --config rest.toml pubsub"]
    steps += [f"for name in {' '.join(filters)}; do tidemark --config $name.toml provision; done"]
    steps += ["DAGSTER_HOME=$PWD dagster dev -f definitions.py", "tidemark --config rest.toml status"]
    print(*(f"  {step}" for step in steps), sep="\n")
    print("docs/how-to/cohorts.md says what to change for Google's service")
