"""Terraform plans the module with a provider on loopback: what it asks Google for, and which values it refuses."""

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.provider import Asked, serving
from tests.programs import ended
from tidemark.pipeline.pubsub.requirements import wanted
from tidemark.pipeline.settings_sections import PubSubSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
TERRAFORM = shutil.which("terraform") or shutil.which("tofu")
pytestmark = pytest.mark.skipif(TERRAFORM is None, reason="there is no terraform on this machine")

Plan = Callable[..., tuple[Asked, str]]


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Asked, Callable[..., str]]]:
    """A folder of its own, the provider's notes, and a call of Terraform there that returns its errors."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "no.rc").touch()
    (folder / "tidemark").symlink_to(DEPLOY)
    (folder / "generated").mkdir()
    with serving(folder / "generated") as (asked, variables):
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "CHECKPOINT_DISABLE": "1", **variables}
        environment["TF_CLI_CONFIG_FILE"] = str(folder / "no.rc")

        def run(*arguments: str) -> str:
            done = ended([str(TERRAFORM), *arguments], folder, environment)
            return "" if done.returncode == 0 else " ".join((done.stdout + done.stderr).replace("│", " ").split())

        yield folder, asked, run


@pytest.fixture(scope="module")
def plan(terraform: tuple[Path, Asked, Callable[..., str]]) -> Plan:
    """Plan the module as a part of somebody else's project, whose provider it takes."""
    folder, asked, run = terraform

    def planned(source: str = "./tidemark/terraform", **values: str) -> tuple[Asked, str]:
        given = {"project": '"my-project"', "bucket": '"my-lake"', **values}
        lines = "".join(f"  {name} = {value}\n" for name, value in given.items())
        theirs = f'provider "google" {{}}\nmodule "watermark" {{\n  source = "{source}"\n{lines}}}\n'
        (folder / "main.tf").write_text(theirs)
        asked.clear()
        return asked, run("init", "-no-color") or run("plan", "-no-color", "-input=false")

    return planned


@pytest.fixture(scope="module")
def by_default(plan: Plan) -> Asked:
    asked, error = plan(create_topic="true")
    assert error == ""
    return asked.copy()


def named(asked: Asked, kind: str) -> list[dict[str, Any]]:
    return [given for of_kind, given in asked if of_kind == kind]


@pytest.mark.parametrize("role", ["tracking", "base"])
def test_a_subscription_is_what_provision_would_create(by_default: Asked, role: str) -> None:
    want = wanted(PubSubSettings(), getattr(PubSubSettings(), f"{role}_path"))
    name = want.pop("name").rsplit("/", 1)[1]
    (said,) = [one.copy() for one in named(by_default, "google_pubsub_subscription") if one["name"] == name]
    assert said.pop("name") == name
    assert said.pop("project") == "my-project"
    assert said.pop("topic").endswith(want.pop("topic").rsplit("/", 1)[1])
    assert said.pop("ack_deadline_seconds") == want.pop("ack_deadline_seconds")
    kept: timedelta = want.pop("message_retention_duration")
    assert said.pop("message_retention_duration") == f"{kept.total_seconds():.0f}s"
    assert said.pop("filter") == want.pop("filter")
    assert want.pop("expiration_policy") == {}
    assert said.pop("expiration_policy") == [{"ttl": ""}], "it never expires"
    assert want.pop("message_transforms") == []
    assert want == {}, "provision asks for something that the module does not"
    assert set(said.values()) == {False}, "no dead letter, no push, no order"


def test_roles_are_the_files_and_each_is_given_where_its_scope_says(by_default: Asked) -> None:
    files = {file.stem: yaml.safe_load(file.read_text()) for file in (DEPLOY / "roles").glob("*.yaml")}
    by_people = ("attach.", "measure.")  # granted by grant.sh
    for_this = {name for name in files if not name.startswith(by_people) and name != "tracker.signal"}
    roles = {
        one["role_id"].removeprefix("tidemark."): one for one in named(by_default, "google_project_iam_custom_role")
    }
    assert roles.keys() == for_this
    assert all(roles[name]["permissions"] == files[name]["includedPermissions"] for name in for_this)
    subscriptions = {one["subscription"] for one in named(by_default, "google_pubsub_subscription_iam_member")}
    assert subscriptions == {"heartbeats-base", "heartbeats-tracking"}
    given = {
        kind: len(named(by_default, f"google_{kind}_iam_member"))
        for kind in ("project", "pubsub_topic", "storage_bucket")
    }
    buckets = [name for name in for_this if name.endswith(".bucket")]
    project = [name for name in for_this if name.startswith("provision.") or name.endswith(".project")]
    assert given == {"project": len(project), "pubsub_topic": 0, "storage_bucket": len(buckets)}


def test_the_bucket_is_private_and_nothing_but_housekeeping_deletes_in_it(by_default: Asked) -> None:
    (bucket,) = named(by_default, "google_storage_bucket")
    assert bucket.pop("uniform_bucket_level_access") is True
    assert bucket.pop("public_access_prevention") == "enforced"
    assert bucket.pop("force_destroy") is False
    assert bucket.keys() == {"project", "name", "location", "versioning", "soft_delete_policy"}


def test_the_watermarks_metric_counts_the_lines_of_its_pipeline_alone(by_default: Asked) -> None:
    (metric,) = named(by_default, "google_logging_metric")
    assert metric["filter"] == 'jsonPayload.behind_now >= 0 AND jsonPayload.pipeline = "tidemark"'


def test_an_attached_pipeline_may_have_an_account_of_attach_alone(plan: Plan) -> None:
    asked, error = plan(accounts='{ attach = "tidemark-attach" }')
    assert error == ""
    members = named(asked, "google_pubsub_subscription_iam_member")
    assert sorted(one["subscription"] for one in members) == ["heartbeats-base", "heartbeats-tracking"]
