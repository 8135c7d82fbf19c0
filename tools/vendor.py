"""Fetches from npm what the web page and its tests have of others, as each `vendored.json` says, and notes the sums.

    python -m tools.vendor            # fetch again; what comes out is checked in
    npm view preact version           # what is new: change the version in vendored.json first

Imports between the packages become relative ones: the page allows no import map, which is an inline script. Neither an
installation nor a test runs it; `tests/page/test_vendored.py` compares the sums.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "api" / "stoker_api" / "page" / "web" / "vendor", ROOT / "tests" / "page" / "vendor")
MANIFEST, LICENCES = "vendored.json", "LICENSES.txt"
RELATIVE = {
    "preact": "./preact.js",
    "preact/hooks": "./preact-hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
GLOBALS = {"uplot.js": "uPlot"}
"""Scripts that set a global name, and are to export it."""


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for folder in FOLDERS:
            _fill(folder, Path(temporary))


def _fill(folder: Path, work: Path) -> None:
    manifest: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text())
    licences: dict[str, str] = {}
    for name, entry in manifest.items():
        package = _unpacked(f"{entry['package']}@{entry['version']}", work)
        text = _as_module(name, (package / entry["file"]).read_text())
        (folder / name).write_text(text)
        entry["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        title = f"{entry['package']} {entry['version']} ({entry['licence']})"
        licences[title] = (package / "LICENSE").read_text().strip()
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    text = "\n\n".join(f"{title}\n{'=' * len(title)}\n\n{licence}" for title, licence in licences.items())
    (folder / LICENCES).write_text(text + "\n")


def _unpacked(wanted: str, work: Path) -> Path:
    folder = work / re.sub(r"\W", "_", wanted)
    if not folder.exists():
        command = ["npm", "pack", "--silent", "--pack-destination", str(work), wanted]
        packed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()[-1]
        with tarfile.open(work / packed) as archive:
            archive.extractall(folder, filter="data")
    return folder / "package"


def _as_module(name: str, text: str) -> str:
    text = re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "\n", text)
    for package, path in RELATIVE.items():
        text = text.replace(f'from"{package}"', f'from"{path}"')
    return text + f"export default {GLOBALS[name]};\n" if name in GLOBALS else text


if __name__ == "__main__":
    main()
