"""Cohorts side by side: each message is of one pipeline, and the project that `tidemark init --cohort` writes loads in
Dagster."""

import tomllib
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_file
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command import Said, said_here
from tidemark.local.emulator.filters import parse_filter
from tidemark.local.emulator.server import served
from tidemark.local.services.cohort_files import cohorts_of
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings import load_settings

EU_AND_OTHERS = ('attributes.region = "eu"', 'america=attributes.region = "us" OR attributes.region = "ca"')


COMPARISON = st.one_of(
    st.sampled_from(["attributes:a", "attributes:b"]),
    st.builds('attributes.{} = "{}"'.format, st.sampled_from("ab"), st.sampled_from(["eu", "us"])),
    st.builds('hasPrefix(attributes.{}, "{}")'.format, st.sampled_from("ab"), st.sampled_from("eu")),
)
EXPRESSION = st.one_of(
    COMPARISON, *(st.builds(f"{{}} {word} {{}}".format, COMPARISON, COMPARISON) for word in ("AND", "OR"))
)


@given(st.lists(EXPRESSION, min_size=1, max_size=3))
def test_the_rest_is_what_no_cohort_lets_pass(expressions: list[str]) -> None:
    filters = cohorts_of([f"c{number}={text}" for number, text in enumerate(expressions)])
    assert list(filters) == [*(f"c{number}" for number in range(len(expressions))), "rest"]
    passes = {name: parse_filter(text) for name, text in filters.items()}
    rest = passes.pop("rest")
    for a, b in product([None, "eu", "us", "e", ""], repeat=2):
        message = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
        assert rest(message) != any(cohort(message) for cohort in passes.values())


def test_a_cohort_s_name_is_given_or_derived_from_its_filter() -> None:
    for written, name in (
        ('attributes.region = "eu"', "eu"),
        ('hasPrefix(attributes.firmware, "3.")', "firmware_3"),
        ("attributes:premium", "premium"),
        ('europe=attributes.region = "eu"', "europe"),
        ('e = attributes.a = "1" OR attributes.a = "2"', "e"),
    ):
        assert list(cohorts_of([written])) == [name, "rest"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (['attributes.region != "eu"'], "give one, as in eu=attributes.region"),
        (['attributes.a = "x" OR attributes.a = "y"'], "a name cannot be derived"),
        (["-attributes:premium"], "a name cannot be derived"),
        (['attributes.region = "eu'], "eu cannot have this filter: .*at character 21"),
        (["attributes:a", "a=attributes:b"], "would be called a: write another name first, as in NAME=attributes:b"),
        (["rest=attributes:a"], "two pipelines would be called rest"),
        (
            [f'a=attributes.a = "{"x" * 120}"', f'b=attributes.b = "{"x" * 120}"'],
            "rest cannot .*the maximum is 256 bytes; name fewer",
        ),
        ([f'a=attributes.a = "{"é" * 121}"'], "a cannot have this filter: the filter is 259 bytes"),
    ],
)
def test_cohorts_that_could_not_stand_side_by_side_are_refused(written: list[str], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        cohorts_of(written)


def init(folder: Path, *more: str) -> Said:
    return said_here(
        folder.parent, ("init", str(folder), *(x for text in EU_AND_OTHERS for x in ("--cohort", text)), *more), {}
    )


def test_init_writes_pipelines_side_by_side_that_share_nothing_but_the_topic(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    said = init(folder, "--ports", "34000")
    assert (said.code, said.err) == (0, "")
    assert "for name in eu america rest; do tidemark --config $name.toml provision; done" in said.out
    settings = [load_settings(folder / f"{name}.toml") for name in ("eu", "america", "rest")]
    named = [(one.dagster.name, one.dagster.location) for one in settings]
    assert named == [(name, "definitions.py") for name in ("eu", "america", "rest")]
    assert {one.pubsub.topic_path for one in settings} == {"projects/tidemark-local/topics/heartbeats"}
    assert {one.pubsub.emulator_host for one in settings} == {"127.0.0.1:34000"}
    own = [(one.pubsub.base_path, one.pubsub.tracking_path, one.lake.uri) for one in settings]
    assert len({part for parts in own for part in parts}) == 3 * 3
    assert [one.pubsub.filter for one in settings] == list(cohorts_of(EU_AND_OTHERS).values())
    assert tomllib.loads((folder / "eu.toml").read_text())["pubsub"]["filter"] == EU_AND_OTHERS[0]
    again = init(folder)
    assert (again.code, "it was not overwritten" in again.err) == (1, True)
    assert init(tmp_path / "other", "--shape", "avro").code == 2
    assert init(tmp_path / "served", "--topic", "projects/acme/topics/beats", "--first", "2026-11-01").code == 0
    served = load_settings(tmp_path / "served" / "america.toml")
    assert (served.emulated, served.pubsub.topic_path) == (False, "projects/acme/topics/beats")
    assert served.pubsub.base_path == "projects/acme/subscriptions/beats-america-base"
    assert served.windows.first == datetime(2026, 11, 1, tzinfo=UTC)


def tick(defs: dg.Definitions, instance: dg.DagsterInstance, name: str, sensor: str) -> SensorExecutionData:
    """One tick of a pipeline's sensor, as the daemon evaluates it."""
    resources = {
        key: value for key, value in (defs.resources or {}).items() if key in (f"{name}_pubsub", f"{name}_lake")
    }
    named = f"{name}_{sensor}"
    with dg.build_sensor_context(instance, definitions=defs, sensor_name=named, resources=resources) as context:
        return defs.resolve_sensor_def(named).evaluate_tick(context)


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_each_pipeline_of_the_project_ticks_over_its_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    assert init(folder).code == 0
    with served() as address, dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        (target,) = loadable_targets_from_python_file(str(folder / "definitions.py"))
        defs = target.target_definition
        dg.Definitions.validate_loadable(defs)
        with dg.DagsterInstance.from_config(str(folder)) as with_a_queue:
            queue = with_a_queue.get_concurrency_config().run_queue_config
        assert queue.tag_concurrency_limits == [{"key": "tidemark/why", "limit": queue.max_concurrent_runs - 1}]
        groups = {defs.resolve_assets_def(key).group_names_by_key[key] for key in defs.resolve_all_asset_keys()}
        assert groups == {"tidemark", "eu", "america", "rest"}
        subscriptions = {
            (name, f"{side}_subscription") for name in ("eu", "america", "rest") for side in ("base", "tracking")
        }
        children = defs.resolve_asset_graph().get(dg.AssetKey("topic")).child_keys
        assert {tuple(key.path) for key in children} == subscriptions
        subscriber, publisher = subscriber_client(address), publisher_client(address)
        every = {name: load_settings(folder / f"{name}.toml", name=name) for name in ("eu", "america", "rest")}
        for settings in every.values():
            made = provision(subscriber, publisher, settings.pubsub, settings.contract, SystemClock())
            assert made.warnings == []
        now = SystemClock().now().isoformat()
        publisher.publish(
            topic=every["eu"].pubsub.topic_path,
            messages=[
                {"data": b"{}", "attributes": {"region": region, "stream_id": region, "event_time": now}}
                for region in ("eu", "us", "ca", "jp", "eu")
            ],
        )
        landed = {}
        for name, settings in every.items():
            tick(defs, instance, name, "landing")
            seen = {event.asset_key for event in tick(defs, instance, name, "tracking").asset_events}
            assert dg.AssetKey([name, "watermark"]) in seen
            table = Lake(settings.lake, settings.message.kinds, SystemClock()).heartbeats().in_place()
            landed[name] = sorted(table.to_pyarrow_table()["stream_id"].to_pylist())
        for client in (subscriber, publisher):
            client.transport.close()
    assert landed == {"eu": ["eu", "eu"], "america": ["ca", "us"], "rest": ["jp"]}
