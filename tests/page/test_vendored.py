"""What the page and its tests have of others is as `vendored.json` says: these files and sums, with their licences."""

from __future__ import annotations

import hashlib
import json

import pytest

from tools.vendor import FOLDERS, LICENCES, MANIFEST, ROOT


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT).parent))
def test_files_are_as_they_were_fetched(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest}
    assert sums == {name: entry["sha256"] for name, entry in manifest.items()}
    assert {path.name for path in folder.iterdir()} == {*manifest, MANIFEST, LICENCES}
    licences = (folder / LICENCES).read_text()
    for entry in manifest.values():
        assert f"{entry['package']} {entry['version']} ({entry['licence']})" in licences


def test_the_notice_names_each_package_of_the_wheel():
    manifest = json.loads((FOLDERS[0] / MANIFEST).read_text())
    notice = (ROOT / "NOTICE").read_text()
    for entry in manifest.values():
        assert f"{entry['package']} {entry['version']}" in notice
