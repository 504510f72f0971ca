"""What these tests share."""

import pytest

from tests.official_emulator import HOST, free_port


@pytest.fixture(autouse=True)
def _at_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_METRICS__LISTEN", f"{HOST}:{free_port()}")
