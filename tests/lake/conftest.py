"""Lakes in the places where they may be."""

from pathlib import Path

import pytest

from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.settings_sections import LakeSettings


@pytest.fixture(params=["disk", pytest.param("gcs", marks=pytest.mark.gcs)])
def lake_settings(request: pytest.FixtureRequest, tmp_path: Path) -> LakeSettings:
    """An empty lake, in a folder and in a bucket."""
    settings = LakeSettings(uri=f"file:{tmp_path}/lake")
    return settings if request.param == "disk" else request.getfixturevalue("gcs_lake_settings")


@pytest.fixture
def objects(lake_settings: LakeSettings) -> ObjectStore:
    """The objects of such a lake."""
    return open_objects(lake_settings)
