"""From a dashboard and its answers to a PNG: Grafana's components in a headless Chromium.

Owns the folder `screenshots` in the cache: node_modules by package.json, and the bundle. Needs node, npm and Chromium.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable

HERE = Path(__file__).resolve().parent
WIDTH = 1680
_CELL, _HEAD = 38, 96
INSTALL_TIMEOUT_S, BUNDLE_TIMEOUT_S, SHOT_TIMEOUT_S = 900.0, 180.0, 120.0
SETTLE_MS = 8000
"""Of the page's own time, in which it draws."""


INSTALL = ("npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps")
"""Without a lock file: it would hold a registry's address. react-table does not say that it works with React 19."""
BUNDLE = (
    *("app/index.jsx", "--bundle", "--minify", "--format=esm", "--outfile=app.js", "--log-level=error"),
    *("--loader:.js=jsx", "--loader:.woff2=dataurl", "--loader:.woff=empty", "--loader:.ttf=empty"),
    *('--define:process.env.NODE_ENV="production"', "--define:global=window"),
    "--alias:react-custom-scrollbars-2=./app/scrollbars.cjs",
)
HEADLESS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"),
    "--enable-logging=stderr",
)


def bundle() -> Path:
    """The folder with app.js and app.css, made anew; packages only where package.json changed. Raises: Unavailable."""
    folder = build.cache() / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    wanted, installed = (HERE / "package.json").read_text(), folder / "package.json"
    if not (folder / "node_modules").exists() or not installed.exists() or installed.read_text() != wanted:
        packages = [f"{name}@{version}" for name, version in json.loads(wanted)["dependencies"].items()]
        _run([*INSTALL, f"--prefix={folder}", *packages], folder, INSTALL_TIMEOUT_S)
        installed.write_text(wanted)
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    shutil.copytree(HERE / "app", app)
    _run([str(folder / "node_modules" / ".bin" / "esbuild"), *BUNDLE], folder, BUNDLE_TIMEOUT_S)
    return folder


def shoot(folder: Path, shot: Mapping[str, Any], target: Path) -> None:
    """Draws the dashboard `shot["dashboard"]` into `target`. Raises: Unavailable."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise Unavailable("no chromium; on Debian: apt-get install chromium")
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shot["dashboard"]["panels"]) * _CELL + _HEAD
    with tempfile.TemporaryDirectory(prefix="stoker-shot-") as scratch:
        page = Path(scratch) / "page.html"
        data = json.dumps({**shot, "width": WIDTH}).replace("</", "<\\/")
        page.write_text(
            '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#111217">'
            f'<link rel="stylesheet" href="file://{folder}/app.css"><div id="root"></div>'
            f'<script>window.SHOT = {data};</script><script type="module" src="file://{folder}/app.js"></script>'
        )
        target.unlink(missing_ok=True)
        command = [
            *(chromium, *HEADLESS, f"--user-data-dir={scratch}/profile", f"--window-size={WIDTH},{height}"),
            *(f"--screenshot={target}", f"--virtual-time-budget={SETTLE_MS}", f"file://{page}"),
        ]
        said = _run(command, Path(scratch), SHOT_TIMEOUT_S)
    broken = [line for line in said.splitlines() if "CONSOLE" in line and ("BROKEN" in line or "Uncaught" in line)]
    if broken or not target.exists():
        raise Unavailable(f"no true picture of {shot['dashboard']['title']}: {' '.join(broken)[:3000]}")


def _run(command: list[str], folder: Path, timeout_s: float) -> str:
    """What it said on stderr."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-2000:]}")
    return done.stderr
