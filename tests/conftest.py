"""Fixtures for all tests: an emulator, and a Cloud Storage server for the tests marked `gcs`."""

from hypothesis import settings

pytest_plugins = ["tests.fixtures_emulator", "tests.gcs.fixtures"]

settings.register_profile("tidemark", deadline=None)  # machines are shared: no test asserts a time
settings.load_profile("tidemark")
