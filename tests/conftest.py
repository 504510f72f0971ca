"""Fixtures for all tests: an emulator, a Cloud Storage server for the tests marked `gcs`, settings of one's own."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# PySpark forks to start a JVM, and gRPC's own fork handlers abort three of a hundred such forks. gRPC reads this when
# it is imported, by the plugins below at the earliest.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A test's JVM lives for seconds: its second compiler would take half of its processor time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

pytest_plugins = ["tests.fixtures_emulator", "tests.gcs.fixtures", "tests.parallel"]

# Machines are shared: no test asserts a time. Half of the library's own number of examples finds what all find.
settings.register_profile("tidemark", deadline=None, max_examples=50)
settings.load_profile("tidemark")


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> Iterator[None]:
    """No power is cut while tests run: a sync need not reach the disk. Tests of syncs note what is synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _no_settings_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is invoked in this process names its settings file in the environment."""
    monkeypatch.setenv("TIDEMARK_CONFIG", "to be put back as it was")
    monkeypatch.delenv("TIDEMARK_CONFIG")
