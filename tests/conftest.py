"""Fixtures for all tests: an emulator, and a Cloud Storage server for the tests marked `gcs`."""

pytest_plugins = ["tests.fixtures_emulator", "tests.gcs.fixtures"]
