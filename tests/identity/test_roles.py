"""The role files are the table's, and what grants them names every one."""

import os
import subprocess
from pathlib import Path

import yaml

from tests.programs import ended
from tests.spark.machine import script
from tools.write_roles import role_files

ROLES = Path(__file__).resolve().parents[2] / "deploy" / "roles"
GCLOUD = """\
echo "$*" >> "$CALLED"
case "$*" in "iam roles create tidemark.lander"*) exit 1 ;; esac
"""
"""A program that writes down how it is called, and refuses to create the lander's roles, which are there."""


def test_the_role_files_are_those_of_the_table_as_gcloud_reads_them() -> None:
    assert {file.name: file.read_text() for file in ROLES.glob("*.yaml")} == role_files()
    for role in map(yaml.safe_load, role_files().values()):
        assert set(role) == {"title", "description", "stage", "includedPermissions"}
        assert (len(role["title"]) <= 100, len(role["description"]) <= 300) == (True, True)


def grant(called: Path, *parts: str, **more: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PROJECT": "p", "BASE": "base", "TRACKING": "tracking", "BUCKET": "b", "MEMBER": "serviceAccount:s@p"}
    environment = {
        **os.environ,
        **variables,
        **more,
        "CALLED": str(called),
        "PATH": f"{called.parent}:{os.environ['PATH']}",
    }
    return ended(["/bin/sh", ROLES / "grant.sh", *parts], variables=environment)


def test_granting_creates_or_updates_each_role_and_binds_it_to_its_resource_alone(tmp_path: Path) -> None:
    script(tmp_path / "gcloud", GCLOUD)
    called = tmp_path / "called"
    done = grant(called, "lander", "checks")
    assert done.returncode == 0, done.stderr
    lines = called.read_text().splitlines()
    assert [line.split()[2:4] for line in lines if line.startswith("iam roles")] == [
        ["create", "tidemark.lander.bucket"],
        ["update", "tidemark.lander.bucket"],
        ["create", "tidemark.lander.project"],
        ["update", "tidemark.lander.project"],
        ["create", "tidemark.lander.subscription"],
        ["update", "tidemark.lander.subscription"],
        ["create", "tidemark.checks.bucket"],
        ["create", "tidemark.checks.subscription"],
    ]
    bound = "--member=serviceAccount:s@p --role=projects/p/roles/tidemark."
    assert f"storage buckets add-iam-policy-binding gs://b {bound}lander.bucket" in lines
    assert f"projects add-iam-policy-binding p --condition=None {bound}lander.project" in lines
    for name in ("tracking", "base"):
        assert f"pubsub subscriptions add-iam-policy-binding {name} --project=p {bound}checks.subscription" in lines
    assert len(lines) == 8 + 4 + 3
    assert grant(called, "tracker", SIGNAL="hours").returncode == 0
    on_topics = [line for line in called.read_text().splitlines() if line.startswith("pubsub topics")]
    assert on_topics == [f"pubsub topics add-iam-policy-binding hours --project=p {bound}tracker.signal"]
