from __future__ import annotations

import pytest
from tests.builders.real_airflow import real_airflow


@pytest.fixture(scope="session")
def airflow(tmp_path_factory):
    """One real Airflow with EMEP and two simulated nodes for all tests of this folder."""
    with real_airflow(tmp_path_factory.mktemp("pipeline")) as running:
        yield running
