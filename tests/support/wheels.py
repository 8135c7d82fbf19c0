"""Tiny packages made without any tool: a wheel is a zip archive with a few texts in it."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, source: str) -> Path:
    """A wheel of one module of this name, with a command of it that prints `module.WORD`."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source + "\ndef main(): print('command', WORD)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-say = {name}:main\n",
    }
    lines = [f"{path},{_digest(text)},{len(text)}" for path, text in files.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_, text in files.items():
            archive.writestr(name_, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))
    return path


def _digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
