"""docs/exporter-scenarios.md is what the real child tells in each scenario."""

import pytest

from tools.generate.exporter_scenarios import PAGE, page


@pytest.mark.slow
def test_the_table_of_series_and_scenarios(fake_nvml):
    assert page() == PAGE.read_text(), "run: python -m tools.generate.exporter_scenarios, and look at what changed"
