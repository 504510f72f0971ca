"""The Terraform module asks for what `tidemark provision` asks for, in the provider's words."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.hcl import Block, parsed
from tidemark.pipeline.pubsub.requirements import wanted
from tidemark.pipeline.settings_sections import IngestSettings, PubSubSettings

FOLDER = Path(__file__).parents[2] / "deploy" / "terraform"
MODULE = parsed(FOLDER)
PROVIDER = json.loads((Path(__file__).parent / "google_provider.json").read_text())["resources"]
OF_TERRAFORM = {"for_each", "count", "depends_on", "provider", "lifecycle"}
SETTINGS = PubSubSettings()


def resources() -> dict[tuple[str, str], Block]:
    found = {}
    for block in MODULE.blocks:
        if block.type in ("resource", "data"):
            kind, name = block.labels
            found[kind if block.type == "resource" else f"data.{kind}", name] = block
    return found


def variable(name: str) -> Block:
    (found,) = [block for block in MODULE.blocks if (block.type, block.labels) == ("variable", [name])]
    return found


def default(expression: str) -> str:
    """The value of `var.name` by default, without quotes; any other expression as it is."""
    text = variable(expression.removeprefix("var.")).arguments["default"] if expression[:4] == "var." else expression
    return text.strip('"')


@pytest.mark.parametrize("role", ["tracking", "base"])
def test_a_subscription_is_what_provision_would_create(role: str) -> None:
    path = getattr(SETTINGS, f"{role}_path")
    asked = {"filter": "", **wanted(SETTINGS, path)}
    block = resources()["google_pubsub_subscription", role]
    said = {name: default(value) for name, value in block.arguments.items()}
    assert f"projects/{SETTINGS.project}/subscriptions/{said.pop('name')}" == asked.pop("name") == path
    assert said.pop("topic") == "local.topic"
    assert asked.pop("topic").endswith(f"/{default('var.topic')}")
    assert int(said.pop("ack_deadline_seconds")) == asked.pop("ack_deadline_seconds")
    assert said.pop("message_retention_duration") == f"{asked.pop('message_retention_duration').total_seconds():.0f}s"
    assert said.pop("filter") == asked.pop("filter")
    assert asked.pop("expiration_policy") == {}
    assert block.one("expiration_policy").arguments == {"ttl": '""'}, "it never expires"
    assert asked == {}, "provision asks for something that the module does not"
    assert said.pop("depends_on", None) == ("[google_pubsub_subscription.tracking]" if role == "base" else None)
    assert set(said.values()) == {"false"}
    assert {inner.type for inner in block.blocks} == {"expiration_policy", "lifecycle"}, "no dead letter"


def test_each_argument_is_one_of_the_providers_and_none_that_it_needs_is_missing() -> None:
    def check(block: Block, shape: dict[str, dict[str, object]], where: str) -> None:
        blocks: dict[str, dict[str, dict[str, object]]] = shape.get("blocks", {})  # type: ignore[assignment]
        inner = [one for one in block.blocks if one.type not in OF_TERRAFORM]
        known = {*shape["arguments"], *blocks, *OF_TERRAFORM}
        given = {*block.arguments, *(one.type for one in inner)}
        assert given <= known, f"{where}: {given - known}"
        assert set(shape["required"]) <= given, f"{where}: {set(shape['required']) - given}"
        for one in inner:
            check(one, blocks[one.type], f"{where}.{one.type}")

    for (kind, name), block in resources().items():
        check(block, PROVIDER[kind], f"{kind}.{name}")


def test_nothing_is_named_that_is_not_there() -> None:
    whole = "\n".join(file.read_text() for file in FOLDER.glob("*.tf"))
    variables = {block.labels[0] for block in MODULE.blocks if block.type == "variable"}
    words = whole.replace("{", " ").replace("}", " ").replace("(", " ").replace(")", " ").replace("[", " ")
    for word in words.replace("]", " ").replace(",", " ").split():
        if word.startswith("var."):
            assert word.split(".")[1].strip('"') in variables, word
        if word.startswith("google_"):
            kind, name = word.split(".")[:2]
            assert (kind, name) in resources(), word
    assert all(f"var.{name}" in whole for name in variables)


def test_the_bucket_is_private_and_nothing_but_housekeeping_deletes_in_it() -> None:
    bucket = resources()["google_storage_bucket", "lake"]
    assert bucket.arguments["uniform_bucket_level_access"] == "true"
    assert bucket.arguments["public_access_prevention"] == '"enforced"'
    assert bucket.arguments["force_destroy"] == "false"
    assert {block.type for block in bucket.blocks} == {"versioning", "soft_delete_policy", "lifecycle"}


def test_an_alert_on_base_waits_until_readers_on_spark_help() -> None:
    ages = variable("oldest_unacked_seconds").arguments["default"]
    base = int(ages.split("base")[1].split("=")[1].split()[0])
    assert base > IngestSettings().start_after.total_seconds()


def test_terraform_itself_finds_it_well_formed(tmp_path: Path) -> None:
    terraform = shutil.which("terraform") or shutil.which("tofu")
    if terraform is None:
        pytest.skip("there is no terraform on this machine")
    (tmp_path / "empty").touch()
    done = subprocess.run(
        [terraform, "fmt", "-check", "-diff", str(FOLDER)],
        env={"TF_CLI_CONFIG_FILE": str(tmp_path / "empty"), "HOME": str(tmp_path), "CHECKPOINT_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_part_that_has_a_role_has_an_account() -> None:
    text = variable("accounts").arguments["default"].strip("{} ")
    accounts = set(text.replace('"', "").split()[::3])
    parts = {file.name.split(".")[0] for file in FOLDER.parent.glob("roles/*.*.yaml")}
    assert accounts == {"tracker", "lander", "checks", "runs", "web", "provision"} >= parts - {"attach"}  # by grant.sh
