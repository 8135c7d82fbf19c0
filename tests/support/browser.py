"""pytest plugin: a headless Chromium; its pages fail their test where the policy is broken or a script throws.

Where there is no browser or no Playwright, tests that want one are skipped, and the end of the run says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.testbed.fixtures import skip_page

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu"]
WAIT_MS = 60_000
"""On a machine with far more work than cores."""
AXE = (Path(__file__).parents[1] / "page" / "vendor" / "axe.min.js").read_text()
_NOTES_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sample }) =>
  window.violations.push(`${violatedDirective}: ${blockedURI} ${sample}`));
"""

Browse = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The program; skips the test where there is none, or no Playwright to drive it."""
    path = next(filter(None, map(shutil.which, filter(None, (os.environ.get("STOKER_CHROMIUM"), *NAMES)))), None)
    if path is None:
        skip_page("there is no chromium here; as root, `bash tools/chromium.sh` installs it")
    if importlib.util.find_spec("playwright") is None:
        skip_page("playwright is not installed; `make setup` installs it")
    return path


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Any]:
    """The browser, started once for a file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any) -> Iterator[Browse]:
    """Opens an address in a new browser window: browse(url, token="…", width=1440, dark=False)."""
    contexts, faults = [], []

    def open_page(url: str, token: str = "", width: int = 1440, *, dark: bool = False) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
            locale="en-GB",
            timezone_id="Europe/Berlin",
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(_NOTES_VIOLATIONS)
        if token:
            context.add_init_script(f"sessionStorage.setItem('stoker.token', {token!r})")
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            faults += page.evaluate("window.violations")
        assert context.cookies() == []
        context.close()
    assert faults == []


def accessibility_faults(page: Any, only: Sequence[str] = ()) -> list[str]:
    """What axe-core finds in the page as it stands, by all of its rules or some."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{AXE}; undefined")
    rules = {"runOnly": list(only)} if only else {}
    found = page.evaluate("options => axe.run(document, options)", {"resultTypes": ["violations"], **rules})
    return [
        f"{page.url} {fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in found["violations"]
        for node in fault["nodes"][:3]
    ]


@contextlib.asynccontextmanager
async def browsing(path: str) -> AsyncIterator[Any]:
    """An empty window. In the test itself: its pages live on the loop that serves them."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=OPTIONS)
        context = await browser.new_context()
        await context.add_init_script(_NOTES_VIOLATIONS)
        page = await context.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page
        await browser.close()
