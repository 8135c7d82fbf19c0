"""Every relative link in the Markdown pages leads to a file that is there, and its anchor to a heading."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "helm/stoker/README.md", *(ROOT / "docs").rglob("*.md")]


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    words = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", _prose(page))):
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []
