"""A scenario of the fake NVML (tests/nvml) for each test."""

import pytest

from tests.support.nvml_scenario import NoCompiler, Scenario, library


@pytest.fixture(scope="session")
def fake_nvml():
    """Makes a scenario in a folder."""
    try:
        library()
    except NoCompiler as error:
        pytest.skip(str(error))
    return Scenario


@pytest.fixture
def scenario(fake_nvml, tmp_path):
    """Empty; the test adds GPUs and writes it."""
    return fake_nvml(tmp_path)
