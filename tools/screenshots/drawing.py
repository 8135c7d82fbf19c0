"""From a dashboard and its answers to a PNG: Grafana's components, bundled once, in a headless Chromium.

Owns the folder `screenshots` in the cache: node_modules after package.json, and the bundle. Needs node, npm and Chromium.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed import build
from testbed.errors import Unavailable

HERE = Path(__file__).resolve().parent
WIDTH = 1680
_CELL, _HEAD = 38, 96
INSTALL_TIMEOUT_S, BUNDLE_TIMEOUT_S, SHOT_TIMEOUT_S = 900.0, 180.0, 120.0
SETTLE_MS = 8000
"""Of the page's own time, in which it draws."""


def bundle() -> Path:
    """The folder with app.js and app.css, made anew where the sources are newer. Raises: Unavailable."""
    folder = build.cache() / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "package.json").read_text()
    installed = folder / "package.json"
    if not (folder / "node_modules").exists() or not installed.exists() or installed.read_text() != wanted:
        _run(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps",
              "--prefix", str(folder), *_packages(wanted)], folder, INSTALL_TIMEOUT_S)  # fmt: skip
        installed.write_text(wanted)
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    shutil.copytree(HERE / "app", app)
    _run([str(folder / "node_modules" / ".bin" / "esbuild"), "app/index.jsx", "--bundle", "--minify", "--outfile=app.js",
          "--loader:.js=jsx", "--loader:.ttf=empty", "--loader:.woff2=dataurl", "--loader:.woff=empty", "--define:process.env.NODE_ENV=\"production\"", "--define:global=window", "--format=esm", "--alias:react-custom-scrollbars-2=./app/scrollbars.cjs",
          "--log-level=error"], folder, BUNDLE_TIMEOUT_S)  # fmt: skip
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
        said = _run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
              f"--user-data-dir={scratch}/profile", f"--window-size={WIDTH},{height}", f"--screenshot={target}",
              f"--virtual-time-budget={SETTLE_MS}", "--enable-logging=stderr", f"file://{page}"],
                    Path(scratch), SHOT_TIMEOUT_S)  # fmt: skip
    broken = [line for line in said.splitlines() if "CONSOLE" in line and ("BROKEN" in line or "Uncaught" in line)]
    if broken or not target.exists():
        raise Unavailable(f"no true picture of {shot['dashboard']['title']}: {' '.join(broken)[:3000]}")


def _packages(text: str) -> list[str]:
    return [f"{name}@{version}" for name, version in json.loads(text)["dependencies"].items()]


def _run(command: list[str], folder: Path, timeout_s: float) -> str:
    """What it said on stderr."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-2000:]}")
    return done.stderr
