"""pytest plugin: which tests one process runs together where several run them (`-n`): those of a shared cluster, else
those of a file; the groups that take longest come first.

A cluster is started in one process for all its tests, and stopped after the last of them: it costs a fifth of a core
while it idles.
"""

from __future__ import annotations

import json
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.testbed.fixtures import clusters

_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups = {item.nodeid: _group(item) for item in items}
    slow = {groups[item.nodeid] for item in items if item.get_closest_marker("slow")}
    planes = {nodeid: group if _is_plane(group) else "" for nodeid, group in groups.items()}
    items.sort(key=lambda item: (not planes[item.nodeid], planes[item.nodeid], groups[item.nodeid] not in slow))
    if workerinput := getattr(config, "workerinput", None):
        Path(workerinput["groups"], workerinput["workerid"]).write_text(json.dumps(groups))


def _group(item: pytest.Item) -> str:
    return next((name for name in clusters(item) if name != "own_control_plane"), str(item.path))


def _is_plane(group: str) -> bool:
    return group.endswith("_plane")


@pytest.hookimpl(trylast=True)  # what the test itself had is cleaned up before
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    group = _group(item)
    if _is_plane(group) and (nextitem is None or _group(nextitem) != group):
        for fixture in item.session._fixturemanager.getfixturedefs(group, item) or ():
            fixture.finish(item._request)  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Only the processes that run tests collect them: each says in this folder how they are grouped."""
    if _FOLDER not in node.config.stash:
        folder = node.config.stash[_FOLDER] = tempfile.TemporaryDirectory()
        node.config.add_cleanup(folder.cleanup)
    node.workerinput["groups"] = node.config.stash[_FOLDER].name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadgroup`, which finds no groups under pytest 9.2 (pytest-xdist 3.8.0 sets `_nodeid`)."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        @cached_property
        def _groups(self) -> dict[str, str]:
            found = next(Path(config.stash[_FOLDER].name).iterdir())
            groups: dict[str, str] = json.loads(found.read_text())
            return groups

        def _split_scope(self, nodeid: str) -> str:
            return self._groups[nodeid]

    config.option.loadscopereorder = False
    return ByGroup(config, log)
