"""pytest plugin: `--one-of-each` runs the first line of each table only, to see that code runs on another Python.

What a table says is proved where all of it runs.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-of-each", action="store_true", help="of a parametrized test only its first parameters")


@pytest.hookimpl(trylast=True)  # after `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.one_of_each:
        firsts: dict[str, pytest.Item] = {}
        others = []
        for item in items:
            if firsts.setdefault(item.nodeid.partition("[")[0], item) is not item:
                others.append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = firsts.values()
