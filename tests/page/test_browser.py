"""The web page in a real browser, against a real `stoker up`: what a person does with their jobs."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest

from stoker.client.client import Client
from stoker.spec.gpu_health import GpuBlame, GpuCause, GpuHealth
from stoker.spec.meta import ObjectMeta
from stoker.spec.node import Gpu, GPUNodeStatus
from stoker.spec.rest_nodes import BurnInState, NodeBurnIn, NodeList, NodeWithUsage
from stoker_api.routes import api_routes
from tests.support.browser import accessibility_faults
from tests.support.harness import SHOWS_PROGRESS, Server, until

pytestmark = [pytest.mark.slow]
TRAINS_MS = 90_000
"""The digits job, with torch's start, on a machine with other work."""
GRAFANA = "https://grafana.example/of"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e"
SHOWN = "<script>alert(1)</script><img src=x onerror=alert(2)>\\u001b[31m\\u202e"
OPERATIONS = [route for route in api_routes() if route.include_in_schema]
METRIC = "<script>alert(3)</script>"  # one with control characters is not kept
TRAINS = (
    SHOWS_PROGRESS
    + """
open(os.path.join(os.environ['STOKER_OUTPUT_DIR'], 'model.txt'), 'w').write('weights')
for step in range(1, 100_000):
    saved = 1 if step < 4 else 4  # an older one, and the newest
    show(step=step, totalSteps=100_000, at=time.time(), checkpoint={'step': saved, 'path': 'c'},
         metrics={'loss': 1 / step, 'reward': step * 2.0})
    if step == 3: time.sleep(1.5)
    print(f'step {step} of it', flush=True)
    time.sleep(0.1)
"""
)
PRINTS = f"""
import os, sys
{SHOWS_PROGRESS}
show(step=1, at=time.time(), metrics={{{METRIC!r}: 1.0}})
print({HOSTILE!r}, flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
sys.exit({HOSTILE!r})
"""


def body(name: str, script: str, *arguments: str, **spec: Any) -> dict[str, Any]:
    command = {"trainer": {"command": [sys.executable, "-c", script, *arguments]}, "gpusPerWorker": 1}
    return {"metadata": {"name": name}, "spec": command | spec}


@pytest.fixture(scope="module")
def up(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A `stoker up` with two simulated GPUs; asked for after the browser, so that without one nothing is started."""
    options = ["--virtual-gpus", "2", "--cpus", "16", "--grafana", GRAFANA]
    server = Server(tmp_path_factory.mktemp("page") / "data", *options).start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(up: Server) -> Iterator[Client]:
    with up.client() as found:
        found.submit(body("trains", TRAINS))
        enough = up.data.parent / "enough"
        found.submit(body("hostile", PRINTS, str(enough)))
        until(lambda: found.metrics("hostile").curves, "its metric is here")
        enough.touch()
        until(lambda: found.get("hostile").status.phase == "Failed", "the hostile job has ended")
        yield found


@pytest.fixture
def token(up: Server) -> str:
    return (up.data / "token").read_text().strip()


def stoker(up: Server, *arguments: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "stoker.cli.main", *arguments]
    env = {**os.environ, "STOKER_HOME": str(up.data)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def link(up: Server, *arguments: str) -> str:
    return stoker(up, "page", *arguments)


def phase(page: Any, name: str) -> None:
    page.locator(".job-head .state", has_text=name).wait_for()


def test_signing_in_by_a_link_and_by_a_token(up, client, browse, token):
    address = link(up)
    page = browse(address)
    page.get_by_role("link", name="trains").wait_for()
    assert "ticket" not in page.url, "it is out of the address"
    page.reload()
    page.get_by_role("link", name="trains").wait_for()

    again = browse(address)
    again.get_by_text("The link is used or too old").wait_for()
    again.get_by_label("Token").fill("stk_wrong")
    again.get_by_role("button", name="Sign in").click()
    again.get_by_text("The token is not known here").wait_for()
    again.get_by_label("Token").fill(token)
    again.keyboard.press("Enter")
    again.get_by_role("link", name="trains").wait_for()
    again.get_by_role("button", name="Sign out").click()
    again.get_by_label("Token").wait_for()
    assert again.evaluate("sessionStorage.length") == 0


def test_watching_a_job_and_acting(up, client, browse, tmp_path):
    page = browse(link(up, "trains"))
    phase(page, "Running")
    page.get_by_role("link", name="Curves").click()
    loss = page.locator("figure", has_text="loss")
    loss.locator("canvas").wait_for()
    before = page.locator("figure", has_text="reward").locator(".latest").inner_text()
    page.wait_for_function("before => document.querySelectorAll('.latest')[1].textContent !== before", arg=before)

    (saved,) = [curve for curve in client.metrics("trains").curves if curve.metric == "stoker/checkpoint"]
    at = datetime.fromtimestamp(saved.times[0], ZoneInfo("Europe/Berlin"))  # the reader's zone
    page.get_by_text(f"Checkpoints: step 1 at {at:%H:%M:%S}").wait_for()
    dashboard = page.get_by_role("link", name="Job trains in Grafana").get_attribute("href")
    assert dashboard.startswith(f"{GRAFANA}/d/stoker-job?var-project=default&var-job=trains&var-run=")

    page.get_by_role("link", name="Log", exact=True).click()
    page.locator(".log .line", has_text="step 1 of it").first.wait_for()
    lines = page.locator(".log .line").count()
    page.wait_for_function("n => document.querySelectorAll('.log .line').length > n", arg=lines)
    page.get_by_label("Search in the log").fill("step 2 of")
    page.wait_for_function("() => document.querySelectorAll('.log .line').length === 1")
    assert page.locator(".log mark").text_content() == "step 2 of"  # its inner text is empty until a frame shows it

    page.get_by_role("link", name="Files").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download model.txt").click()
    assert download.value.suggested_filename == "model.txt"
    assert Path(download.value.path()).read_text() == "weights"

    page.get_by_role("button", name="Suspend").click()
    page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
    phase(page, "Suspended")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    page.locator(".job-head .state", has_text=re.compile("Running|Queued|Starting")).wait_for()


def test_why_a_job_waits_and_a_change_that_helps(up, client, browse, token):
    until(lambda: client.get("trains").status.phase == "Running" or None, "trains runs")
    client.submit(body("waits", TRAINS, gpusPerWorker=2))
    page = browse(f"{up.url}/jobs/default/waits", token)
    phase(page, "Queued")
    page.locator(".blocker", has_text="1 of 2 GPUs missing").wait_for()
    page.get_by_role("link", name="default/trains").wait_for()
    page.get_by_role("button", name="Set gpusPerWorker to 1 …").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("GPUs per worker").input_value() == "1"
    dialog.get_by_label("Name").fill("smaller")
    dialog.get_by_label("Priority").fill("3")
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/jobs/default/smaller")
    phase(page, "Running")
    made = client.get("smaller").spec
    assert (made.gpus_per_worker, made.priority) == (1, 3)
    until(lambda: client.get("waits").status.phase == "Cancelled" or None, "the other is cancelled")


def test_several_jobs_at_once(up, client, browse, token):
    for name in ("one", "two"):
        client.submit(body(name, TRAINS, gpusPerWorker=2))
    queue = browse(f"{up.url}/queues?queue=default", token)
    queue.get_by_role("row", name="2 default/two").wait_for()
    page = browse(f"{up.url}/?text=python&sort=name", token)
    for name in ("one", "two"):
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_role("button", name="Cancel …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("2 jobs of 2 will change").wait_for()
    dialog.get_by_role("button", name="Cancel 2 jobs").click()
    dialog.get_by_role("button", name="Close").last.click()
    page.get_by_role("button", name="Queued").click()
    page.wait_for_url("**phase=Queued**")
    page.get_by_text("No job matches.").wait_for()
    assert client.get("one").status.phase == client.get("two").status.phase == "Cancelled"
    queue.get_by_text("No job that you may see waits here").wait_for()


def test_the_server_is_killed_and_comes_back(up, client, browse, token):
    page = browse(f"{up.url}/jobs/default/trains?tab=log", token)
    page.locator(".log .line").first.wait_for()
    page.evaluate("window.stayed = true")
    ended = browse(f"{up.url}/jobs/default/hostile", token)
    phase(ended, "Failed")
    up.kill()
    page.get_by_text("No connection to the server").wait_for()
    ended.get_by_role("link", name="Usage").click()
    ended.get_by_text("No connection to the server").wait_for()
    up.start()
    ended.get_by_text("No connection to the server").wait_for(state="hidden")
    ended.locator(".tiles, .notice-title").first.wait_for()
    page.get_by_text("No connection to the server").wait_for(state="hidden")
    lines = page.locator(".log .line").all_text_contents()
    page.wait_for_function("n => document.querySelectorAll('.log .line').length > n", arg=len(lines))
    found = re.findall(r"^step (\d+)", "\n".join(page.locator(".log .line").all_text_contents()), re.MULTILINE)
    assert all(int(b) in (int(a) + 1, 1) for a, b in itertools.pairwise(found)), "no line is lost or doubled"
    phase(page, "Running")
    assert page.evaluate("window.stayed"), "without a reload"


def test_what_users_wrote_is_text(up, client, browse, token):
    page = browse(f"{up.url}/jobs/default/hostile?tab=log", token)
    page.locator(".log .line", has_text=SHOWN).first.wait_for()
    page.locator(".message", has_text="<script>alert(1)</script>").wait_for()
    page.get_by_role("link", name="Curves").click()
    page.locator("figcaption", has_text=METRIC).wait_for()
    page.get_by_role("link", name="Spec").click()
    page.locator("pre", has_text="<script>alert(1)</script>").wait_for()
    page.goto(f"{up.url}/?text=hostile")
    page.locator(".note", has_text="<script>alert(1)</script>").wait_for()
    assert page.locator("script:not([src]), #page img[src=x]").count() == 0


def test_sick_gpus_say_where_their_burn_in_stands_and_who_blames_them(up, client, browse, token):
    """The view of a node as the api describes one; what a test found is text."""
    at = datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))
    cause = GpuCause(code="OffTheBus", since=at, message="XID 79")
    sick = [GpuHealth(uuid=f"GPU-{n}", index=n, causes=(cause,)) for n in range(4)]
    blames = [GpuBlame(job_uid=uid, attempt=1, at=at, message=f"hot for {uid}") for uid in ("a", "b")]
    status = GPUNodeStatus(
        ready=True,
        gpus=[
            Gpu(uuid=f"GPU-{n}", index=n, model="H200", memory_bytes=1, unavailable="sick: XID 79") for n in range(4)
        ],
        sick=sick,
        blamed=[GpuHealth(uuid="GPU-6", index=6, blames=blames), GpuHealth(uuid="GPU-7", index=7, blames=blames[:1])],
    )
    states = [
        NodeBurnIn(gpu="GPU-0", index=0, state=BurnInState.TESTING, job="stoker-system/burn-in-gpu-0"),
        NodeBurnIn(gpu="GPU-1", index=1, state=BurnInState.FAILED, message=f"burn-in failed: exit 3: {HOSTILE}"),
        NodeBurnIn(gpu="GPU-2", index=2, state=BurnInState.WAITING, due_at=at),
        NodeBurnIn(gpu="GPU-5", index=5, state=BurnInState.FAILED, message="burn-in failed: found before"),
    ]
    node = NodeWithUsage(metadata=ObjectMeta(name="n1"), status=status, burn_ins=states)
    shown = NodeList(items=(node,)).model_dump_json(by_alias=True, exclude_none=True)
    page = browse(up.url, token)
    page.route("**/v1/nodes", lambda route: route.fulfill(body=shown, content_type="application/json"))
    page.get_by_role("link", name="GPUs").first.click()
    page.get_by_role("heading", name="n1").wait_for()
    assert page.get_by_label("Node n1").locator(".note").all_inner_texts() == [
        "GPU 0 (GPU-0): OffTheBus (XID 79); under test by job stoker-system/burn-in-gpu-0",
        f"GPU 1 (GPU-1): OffTheBus (XID 79); burn-in failed: exit 3: {SHOWN}",
        "GPU 2 (GPU-2): OffTheBus (XID 79); waits for a burn-in",
        "GPU 3 (GPU-3): OffTheBus (XID 79)",
        "GPU 5 (GPU-5); burn-in failed: found before",
        "GPU 6 (GPU-6) is blamed by 2 jobs: hot for a; hot for b",
        "GPU 7 (GPU-7) is blamed by 1 job: hot for a",
    ]
    address = page.get_by_role("link", name="stoker-system/burn-in-gpu-0").get_attribute("href")
    assert address == "/jobs/stoker-system/burn-in-gpu-0"


def test_what_a_link_holds_is_quoted_in_lines_to_copy(up, client, browse, token):
    page = browse(up.url, token)
    bad = quote("x';touch /tmp/owned;'\u202e", safe="")
    for path in (f"?text={bad}", f"queues?queue={bad}", f"compare?jobs=default/{bad.replace('%2F', '')}"):
        page.goto(f"{up.url}/{path}")
        page.get_by_text("The same as").click()
        line = page.locator(".same-as code").first.inner_text()
        assert ["owned;'\\u202e" in word for word in shlex.split(line)].count(True) == 1, line


def test_a_reader_of_another_project_is_offered_nothing(up, client, browse):
    made = stoker(up, "token", "create", "reader", "--role", "reader", "--project", "default")
    page = browse(f"{up.url}/jobs/default/trains", made.split()[0])
    phase(page, "Running")
    page.get_by_role("link", name="Spec").wait_for()
    for name in ("Suspend", "Cancel", "Clone", "Priority"):
        assert page.get_by_role("button", name=name).count() == 0
    assert page.get_by_role("link", name="Files").count() == 0

    made = stoker(up, "token", "create", "other", "--project", "elsewhere")
    page = browse(up.url, made.split()[0])
    page.get_by_text("There are no jobs yet").wait_for()
    page.goto(f"{up.url}/jobs/default/trains")
    page.get_by_text("or the token may not see it").wait_for()


def test_the_api_is_read_and_tried(up, client, browse, token):
    page = browse(f"{up.url}/docs")  # without a token
    page.locator(".operation").first.wait_for()
    assert page.locator(".operation").count() == len(OPERATIONS)
    page.locator("#submit_job > summary").click()
    submit = page.locator("#submit_job")
    submit.get_by_role("button", name="Send POST").wait_for()
    assert submit.get_by_role("button", name="Send POST").is_disabled()
    assert page.url.endswith("/docs?op=submit_job")
    page.get_by_label("Token, to send the examples with").fill(token)
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("Examples are sent with the token of admin").wait_for()
    submit.get_by_text("Its fields").first.click()
    submit.get_by_text("What is asked for.").first.click()
    submit.locator(".schema", has_text="How many workers").first.wait_for()
    submit.get_by_label("dryRun", exact=True).fill("true")
    submit.get_by_label("idempotency-key", exact=True).fill("")
    assert "?dryRun=true" in submit.locator(".command").inner_text()
    submit.get_by_role("button", name="Send POST").click()
    submit.locator(".answer", has_text="200 OK").wait_for()
    submit.locator(".answer", has_text='"name": "digits-1"').wait_for()
    submit.get_by_label("Body of submit_job").fill("{")
    submit.get_by_role("button", name="Send POST").click()
    submit.locator(".answer", has_text='"code": "InvalidJson"').wait_for()
    submit.locator(".errors", has_text="NeverFits").wait_for()
    page.get_by_label("Search operations").fill("job_logs")
    page.locator("#job_logs > summary").click()
    logs = page.locator("#job_logs")
    logs.get_by_label("name", exact=True).fill("trains")
    logs.get_by_label("follow", exact=True).fill("true")
    logs.get_by_role("button", name="Send GET").click()
    logs.locator(".answer", has_text=re.compile(r"step \d+ of it")).wait_for()
    logs.get_by_role("button", name="Stop").click()
    logs.get_by_role("button", name="Stop").wait_for(state="hidden")


@pytest.mark.torch
def test_the_digits_job_from_submit_to_its_end(up, client, browse, token):
    """Submitted from the page, watched while it trains: curve, log, checkpoints."""
    for other in client.ls():  # there is room beside one other job
        if other.metadata.name not in ("trains", "hostile"):
            client.cancel(other.metadata.name)
    page = browse(f"{up.url}/docs?op=submit_job", token)
    submit = page.locator("#submit_job")
    submit.get_by_label("idempotency-key", exact=True).fill("")
    job = json.loads(submit.get_by_label("Body of submit_job").input_value())
    job["spec"] |= {"gpusPerWorker": 0, "workers": 1}
    job["spec"]["trainer"]["config"] = {"data": "digits", "epochs": 2}
    submit.get_by_label("Body of submit_job").fill(json.dumps(job))
    submit.get_by_role("button", name="Send POST").click()
    submit.locator(".answer", has_text="201 Created").wait_for()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("link", name="digits-1").click()
    page.get_by_role("link", name="Curves").click()
    page.locator("figure", has_text="loss").first.locator("canvas").wait_for(timeout=TRAINS_MS)
    page.get_by_role("link", name="Log", exact=True).click()
    page.locator(".log .line").first.wait_for()
    page.locator(".job-head .state", has_text="Succeeded").wait_for(timeout=TRAINS_MS)
    page.get_by_role("link", name="Curves").click()
    page.get_by_text(re.compile("Checkpoints?: step|The newest of")).wait_for()


VIEWS = {
    "/": "table.jobs",
    "/jobs/default/trains": "#why",
    "/jobs/default/trains?tab=curves": "figure canvas",
    "/jobs/default/trains?tab=log": ".log .line",
    "/jobs/default/trains?tab=history": "#events",
    "/jobs/default/trains?tab=usage": ".tiles, .notice-title",
    "/jobs/default/trains?tab=spec": "pre",
    "/jobs/default/trains?tab=spec&against=hostile": ".diff",
    "/jobs/default/trains?tab=files": "text=model.txt",
    "/jobs/default/missing": ".failure",
    "/docs?op=submit_job": ".operation-body",
    "/queues?queue=default": "text=Waiting in default",
    "/gpus": ".cells",
    "/compare?jobs=default/trains,default/hostile": "figure canvas",
}


# Two frames; a second where the browser draws none, as it may on a busy machine: Playwright would wait for ever.
SETTLED = "new Promise(done => { requestAnimationFrame(() => requestAnimationFrame(done)); setTimeout(done, 1000); })"


def test_every_view_is_accessible_and_fits(up, client, browse, token):
    """Wide and narrow, light and dark."""
    page = browse(up.url, token)
    faults = []
    for path, wanted in VIEWS.items():
        page.evaluate(
            "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }", path
        )
        page.locator(wanted).first.wait_for()
        for width in (1440, 360):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(SETTLED)
            faults += accessibility_faults(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                faults.append(f"{path} is {wide} wide at {width}")
        page.emulate_media(color_scheme="dark")
        faults += accessibility_faults(page, only=["color-contrast"])
        page.emulate_media(color_scheme="light")
    assert faults == []


def tab_to(page: Any, name: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == name:
            return
    raise AssertionError(f"Tab does not come to {name!r}")


def test_the_keyboard_is_enough(up, client, browse, token):
    page = browse(up.url, token)
    page.get_by_role("link", name="trains", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("trains")
    page.wait_for_url("**text=trains**")
    tab_to(page, "trains")
    page.keyboard.press("Enter")
    phase(page, "Running")
    tab_to(page, "Cancel")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    phase(page, "Running")
    tab_to(page, "Log")
    page.keyboard.press("Enter")
    page.locator(".log .line").first.wait_for()
