"""Instance, units, image and chart values: each parses, and each module, command and setting in them exists."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from dagster._cli.api import grpc_command

from tests.programs import ended
from tidemark.local.services.stack import CODE_SERVER_THREADS
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = DEPLOY / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
PROGRAMS = {"dagster", "python", "tidemark"}


def yaml_of(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def unit(file: Path) -> dict[str, list[str]]:
    """The settings of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if line and line[0] not in "#[":
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def check_command(words: list[str]) -> None:
    """That a command's program and modules exist, and that it takes these arguments."""
    if words[0].startswith("/usr/bin/"):
        return
    program = Path(words[0]).name
    assert program in PROGRAMS, words
    modules = [word for before, word in pairwise(words) if before == "-m"]
    for module in modules:
        assert importlib.util.find_spec(module) is not None, module
    if program == "python":
        assert modules, words
    if modules[:1] == ["tidemark.resources.code_server"]:
        check_grpc(words[3:])
    if program == "tidemark":
        assert words[1] in {command.name for command in app.registered_commands}


def check_grpc(arguments: list[str]) -> None:
    """That `dagster api grpc` takes these arguments."""
    words = [re.sub(r"\$\{\w+\}", "4266", word) for word in arguments]
    assert words[-2:] == ["--max-workers", str(CODE_SERVER_THREADS)]
    grpc_command.make_parser(click.Context(grpc_command)).parse_args(words)


def check_variables(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That the settings accept these variables, and would refuse others."""
    for name in os.environ:
        if name.startswith("TIDEMARK_"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_CONFIG", str(ROOT / "tidemark.toml"))
    load_settings()
    monkeypatch.setenv("TIDEMARK_DAGSTER__NO_SUCH_KEY", "1")
    with pytest.raises(InvalidSettings):
        load_settings()


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_a_units_command_exists_and_it_gets_no_secret_that_it_does_not_need(file: Path) -> None:
    found = unit(file)
    for command in found["ExecStart"]:
        check_command(shlex.split(command))
    secrets = {Path(name).name for name in found.get("EnvironmentFile", [])}
    needs = {
        "tidemark-code": {"secrets.database", "secrets.spark"},
        "tidemark-spark": {"secrets.spark"},
        "tidemark-status": set(),
    }
    assert secrets == needs.get(file.stem, {"secrets.database"})


def test_systemd_itself_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze on this machine")
    folder = tmp_path / "units"
    shutil.copytree(UNITS, folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(sys.executable)
    for file in folder.glob("*.service"):
        file.write_text(file.read_text().replace("/opt/tidemark/bin", str(programs)))
    units = [str(file) for pattern in ("*.service", "*.target", "*.timer") for file in folder.glob(pattern)]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"}
    done = ended([analyze, "verify", "--man=no", *units], variables=environment)
    assert str(folder) not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def containers() -> Iterator[Mapping[str, Any]]:
    """What runs tidemark on Kubernetes: the code location, and the status job."""
    (deployment,) = yaml_of("kubernetes/values.yaml")["dagster-user-deployments"]["deployments"]
    yield deployment
    yield from yaml_of("kubernetes/status.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]


def test_what_runs_on_kubernetes_has_settings_that_exist_and_few_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in containers():
        variables = {pair["name"]: pair["value"] for pair in one["env"]}
        check_variables({k: v for k, v in variables.items() if k.startswith("TIDEMARK_")}, monkeypatch)
        monkeypatch.undo()
        rights = one["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
        assert rights["capabilities"] == {"drop": ["ALL"]}
        writable = {volume["mountPath"] for volume in one["volumeMounts"] if "readOnly" not in volume}
        assert variables["TIDEMARK_DAGSTER__STORAGE"] in writable
        assert "limits" in one["resources"]
        assert "latest" not in str(one["image"])
    code, status = containers()
    check_grpc(code["dagsterApiGrpcArgs"])
    runs = yaml_of("kubernetes/values.yaml")["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    assert not code["includeConfigInLaunchedRuns"]["enabled"], "runs would get the server's account and resources"
    assert (runs["containerConfig"]["env"], runs["podSpecConfig"]["volumes"]) == (code["env"], code["volumes"])
    assert "serviceAccountName" not in runs["podSpecConfig"], "runs of other locations would have it"
    check_command(status["command"])
    variables = {pair["name"]: pair["value"] for pair in code["env"]}
    assert variables["TIDEMARK_DAGSTER__LOCATION"] == code["name"]
    of_runs = json.loads(variables["DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT"])["k8s"]["run_k8s_config"]
    assert of_runs["pod_template_spec_metadata"]["labels"] == code["labels"], "the network policies go by them"
    assert of_runs["pod_spec_config"]["serviceAccountName"] == "tidemark-runs"
    assert of_runs["pod_spec_config"]["securityContext"] == code["podSecurityContext"]
    assert of_runs["container_config"]["securityContext"] == code["securityContext"]
    assert f"{code['image']['repository']}:{code['image']['tag']}" == status["image"]


def reached(policies: list[Any], labels: Mapping[str, str]) -> set[tuple[str, int]]:
    """Which component reaches a pod with these labels, at which port. Raises AssertionError if no policy is on it."""
    of_pod = [one["spec"] for one in policies if one["spec"]["podSelector"]["matchLabels"].items() <= labels.items()]
    assert of_pod, "everybody reaches it"
    return {
        (component, port["port"])
        for spec in of_pod
        for rule in spec["ingress"]
        for peer in rule["from"]
        for expression in peer["podSelector"]["matchExpressions"]
        for component in expression["values"]
        for port in rule["ports"]
    }


def test_a_code_server_is_reached_by_dagster_alone_and_runs_and_status_by_nobody() -> None:
    policies = list(yaml.safe_load_all((DEPLOY / "kubernetes/network-policy.yaml").read_text()))
    code, _ = containers()
    of_run = {"app.kubernetes.io/component": "run_worker", **code["labels"]}
    of_code = {"component": "user-deployments", "deployment": code["name"], **code["labels"]}
    job = yaml_of("kubernetes/status.yaml")
    of_status = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert reached(policies, of_code) == {("dagster-daemon", code["port"]), ("dagster-webserver", code["port"])}
    assert reached(policies, of_run) == reached(policies, of_status) == set()
    recommended = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by")}
    assert all(recommended <= one["metadata"]["labels"].keys() for one in [job, *policies])
