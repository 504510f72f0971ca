"""Our dagster.yaml on a real instance, and its launcher's answers about runs on a real code server."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._grpc.client import DagsterGrpcClient

from tests.clock import until
from tests.dagster import waiting_job
from tests.official_emulator import HOST, free_port
from tidemark.local.services.processes import listens
from tidemark.local.services.stack import CODE_SERVER

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 240

RUNS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from tidemark.resources.code_server import FOR_RUNS, end_with_lost_threads
multiprocessing.set_forkserver_preload(["theirs", *FOR_RUNS])
forks = multiprocessing.get_context("forkserver")
numbers = set()
for _ in range(2):
    with ProcessPoolExecutor(1, forks) as run:  # a run that dies is an error there; a Pool would wait for ever
        numbers.add(run.submit(eval, "__import__('numpy').random.rand()").result())
probe = forks.Process(target=end_with_lost_threads)
probe.start()
probe.join()
print(len(numbers), probe.exitcode)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launcher")


@pytest.fixture(scope="module")
def instance(folder: Path) -> Iterator[dg.DagsterInstance]:
    """An instance as `tidemark up` has it."""
    home, storage = folder / "home", folder / "storage"
    for each in (home, storage):
        each.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        patch.setenv("TIDEMARK_DAGSTER_STORAGE", str(storage))
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield instance


@dataclass
class CodeServer:
    """A real code server, as workspace.yaml wants it, and the run that it runs."""

    instance: dg.DagsterInstance
    port: int
    log: Path
    module: tuple[str, ...]
    launched: list[psutil.Process] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, "-m", *self.module, "-h", HOST, "-p", str(self.port)]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "-f", waiting_job.__file__], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )
        until("the code server listens", lambda: listens(HOST, self.port))

    def launch(self) -> dg.DagsterRun:
        """Launch the job, and return its run once its process is at it."""
        target = GrpcServerTarget(host=HOST, port=self.port, socket=None, location_name="waiting")
        with WorkspaceProcessContext(self.instance, target) as context:
            request = context.create_request_context()
            (repository,) = request.get_code_location("waiting").get_repositories().values()
            job = repository.get_full_job("waiting")
            run = create_run_for_test(
                self.instance,
                job_name="waiting",
                remote_job_origin=job.get_remote_origin(),
                job_code_origin=job.get_python_origin(),
            )
            self.instance.launch_run(run.run_id, request)
        until("the run has started", lambda: self.run(run).status is dg.DagsterRunStatus.STARTED)
        self.launched += self.run_processes()
        return self.run(run)

    def run(self, run: dg.DagsterRun) -> dg.DagsterRun:
        return self.instance.get_run_by_id(run.run_id)

    def health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        return self.instance.run_launcher.check_run_worker_health(self.run(run))

    def run_processes(self) -> list[psutil.Process]:
        """The runs: children of the process that is forked for each, or new ones before that process is ready."""
        beside = psutil.Process(self.process.pid).children()
        new = [one for one in beside if "spawn_main" in " ".join(one.cmdline())]
        return new + [run for one in beside for run in one.children(recursive=True)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(instance: dg.DagsterInstance, log: Path, module: tuple[str, ...] = (CODE_SERVER,)) -> Iterator[CodeServer]:
    server = CodeServer(instance, free_port(), log, module)
    server.start()
    try:
        yield server
    finally:
        with suppress(psutil.NoSuchProcess):
            server.launched += psutil.Process(server.process.pid).children(recursive=True)
        server.kill()
        for one in server.launched:
            with suppress(psutil.NoSuchProcess):
                one.kill()


@pytest.fixture(scope="module")
def server(instance: dg.DagsterInstance, folder: Path) -> Iterator[CodeServer]:
    with serving(instance, folder / "server.log") as server:
        yield server


def test_a_run_that_has_reached_no_code_server_is_not_known(instance: dg.DagsterInstance) -> None:
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=free_port(), location_name="tidemark")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), "compute_windows")
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED, remote_job_origin=origin)
    health = instance.run_launcher.check_run_worker_health(run)
    assert health.status is WorkerStatus.UNKNOWN
    assert "has not reached a code server" in (health.msg or "")


def test_a_run_that_no_launcher_started_goes_on(instance: dg.DagsterInstance) -> None:
    run = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED)
    assert run.remote_job_origin is None
    health = instance.run_launcher.check_run_worker_health(run)
    assert (health.status, health.msg) == (WorkerStatus.RUNNING, "it runs in the process that started it")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_runs_while_its_process_does_and_has_failed_after_it(server: CodeServer, number: signal.Signals) -> None:
    run = server.launch()
    assert server.health(run).status is WorkerStatus.RUNNING
    processes = server.run_processes()
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # it may end with the one before it
            one.send_signal(number)
    gone, alive = psutil.wait_procs(processes, timeout=SECONDS)  # it would go on for twice as long
    assert gone  # the run, and what keeps its output
    assert not alive
    until("the run has failed", lambda: server.run(run).status is dg.DagsterRunStatus.FAILURE)
    assert server.health(run).status is not WorkerStatus.RUNNING


def test_sigterm_ends_the_code_server_although_a_run_is_under_way_and_the_run_too(server: CodeServer) -> None:
    server.launch()
    runs = server.run_processes()
    server.process.terminate()
    assert server.process.wait(SECONDS) == 0  # the run would go on for twice as long
    assert not psutil.wait_procs(runs, timeout=SECONDS / 2)[1]
    server.start()


def test_a_code_server_that_is_busy_has_its_run_and_one_that_is_killed_has_lost_it_for_good(server: CodeServer) -> None:
    run = server.launch()
    server.process.send_signal(signal.SIGSTOP)
    assert server.health(run).status is WorkerStatus.RUNNING, "it is too busy to answer"
    server.kill()
    health = server.health(run)
    assert health.status is WorkerStatus.FAILED
    assert "the code server that ran it does not answer" in (health.msg or "")
    server.start()
    health = server.health(run)
    assert health.status is WorkerStatus.FAILED
    assert "the code server does not run it" in (health.msg or "")


def test_a_run_goes_on_when_dagster_s_proxy_loads_its_code_again(instance: dg.DagsterInstance, folder: Path) -> None:
    with serving(instance, folder / "proxy.log", ("dagster", "code-server", "start")) as proxy:
        run = proxy.launch()
        DagsterGrpcClient(port=proxy.port, host=HOST).reload_code(timeout=SECONDS)
        assert proxy.health(run).status is WorkerStatus.RUNNING


@pytest.mark.parametrize(
    ("imported", "lost"),
    [("import tidemark.assets.definitions", 0), ("import polars; polars.arange(9, eager=True).unique()", 1)],
)
def test_forked_runs_differ_and_no_template_with_threads_is_forked(tmp_path: Path, imported: str, lost: int) -> None:
    (tmp_path / "theirs.py").write_text(imported)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    printed = subprocess.check_output([sys.executable, "-c", RUNS], env=environment, text=True, timeout=SECONDS)
    assert printed.split() == ["2", str(lost)]
