"""A burn-in's links: what NVML says of them, what a pair could carry, and what is a fault of the GPU under test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker_trainer.links import DOWN, SWITCH, Copies, Links, Unreadable, faults, norm_gb_s
from tests.support.nvml_scenario import NoCompiler, Scenario

torch = pytest.importorskip("torch")

from stoker_trainer import burn_in  # noqa: E402

pytestmark = pytest.mark.torch

A, B, C = "GPU-a", "GPU-b", "GPU-c"
ON_SWITCH = {uuid: Links(f"0000000{n}:1b:00", (SWITCH,) * 18, 26.562) for n, uuid in enumerate((A, B, C))}
BRIDGED = {
    A: Links("00000000:3b:00", ("00000000:5e:00",) * 3 + (DOWN,), 14.062),
    B: Links("00000000:5e:00", ("00000000:3b:00",) * 3 + (DOWN,), 14.062),
    C: Links("00000000:86:00", (DOWN,) * 4, 0.0),
}
FAST, SLOW = Copies(390.0, 388.0), Copies(40.0, 41.0)


def without(links: dict[str, Links], uuid: str, links_down: int) -> dict[str, Links]:
    own = links[uuid]
    return links | {uuid: replace(own, ends=own.ends[links_down:] + (DOWN,) * links_down)}


def test_a_pairs_norm_is_what_the_links_between_them_could_carry() -> None:
    assert norm_gb_s(ON_SWITCH[A], ON_SWITCH[B]) == pytest.approx(18 * 26.562)
    one_down = without(ON_SWITCH, A, 1)
    assert norm_gb_s(one_down[A], one_down[B]) == pytest.approx(18 * 26.562), "as the board is made"
    assert norm_gb_s(BRIDGED[A], BRIDGED[B]) == pytest.approx(3 * 14.062)
    assert norm_gb_s(BRIDGED[A], BRIDGED[C]) == norm_gb_s(BRIDGED[C], BRIDGED[A]) == 0.0
    assert norm_gb_s(ON_SWITCH[A], replace(ON_SWITCH[B], link_gb_s=0.0)) == 0.0


@pytest.mark.parametrize(
    ("links", "copies", "wrong"),
    [
        pytest.param(ON_SWITCH, {B: FAST, C: FAST}, [], id="all as it should be"),
        pytest.param(ON_SWITCH, {}, [], id="nothing was measured"),
        pytest.param(
            ON_SWITCH,
            {B: SLOW, C: replace(SLOW, to=43.0)},
            ["NVLinks to GPU-c carry 43.0 GB/s of 478.1", "NVLinks from GPU-b carry 41.0 GB/s of 478.1"],
            id="copies went over PCIe",
        ),
        pytest.param(ON_SWITCH, {B: SLOW, C: FAST}, [], id="one peer behind the switch is slow: that is its own"),
        pytest.param(
            ON_SWITCH,
            {B: replace(FAST, back=50.0), C: replace(FAST, back=51.0)},
            ["NVLinks from GPU-c carry 51.0 GB/s of 478.1"],
            id="one direction is slow",
        ),
        pytest.param(
            without(ON_SWITCH, A, 1),
            {B: FAST, C: FAST},
            ["1 of 18 NVLinks are down, others' here are up"],
            id="a link is down",
        ),
        pytest.param(
            without(ON_SWITCH, A, 18), {}, ["18 of 18 NVLinks are down, others' here are up"], id="all links are down"
        ),
        pytest.param(without(ON_SWITCH, B, 1), {B: FAST, C: FAST}, [], id="a peer's link is down"),
        pytest.param(
            {uuid: without(ON_SWITCH, uuid, 10)[uuid] for uuid in ON_SWITCH},
            {B: Copies(170.0, 170.0)},
            [],
            id="a board that has links which lead nowhere, on every GPU",
        ),
        pytest.param(BRIDGED, {B: Copies(35.0, 35.0)}, [], id="a bridge leaves links of its cards free"),
        pytest.param(
            BRIDGED, {B: Copies(10.0, 35.0)}, ["NVLinks to GPU-b carry 10.0 GB/s of 42.2"], id="a bridge is slow"
        ),
    ],
)
def test_faults_of_the_gpu_under_test(links: dict[str, Links], copies: dict[str, Copies], wrong: list[str]) -> None:
    assert faults(links, A, copies) == wrong


def test_copies_are_measured_to_peers_that_are_joined_and_what_is_not_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    host = torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: True)
    monkeypatch.setattr(burn_in, "peer_copies", partial(burn_in.peer_copies, size_bytes=1 << 16))
    said, copies = burn_in.nvlink_copies(host, A, {B: host, C: host}, BRIDGED)
    assert set(copies) == {B} and min(copies[B].to, copies[B].back) > 0
    assert isinstance(said, dict) and (said["links"], said["down"], said["link_gb_s"]) == (4, 1, 14.062)
    assert said["gb_s"][B] == {"to": copies[B].to, "from": copies[B].back, "norm": 42.19}
    assert said["gb_s"][C] == "not measured: no NVLink that NVML knows joins them"
    alone, copies = burn_in.nvlink_copies(host, A, {}, {A: BRIDGED[A]})
    assert copies == {} and isinstance(alone, dict) and alone["gb_s"] == "not measured: no peer visible"
    assert burn_in.nvlink_copies(host, A, {B: host}, {A: Links("x")}) == ("not measured: the GPU has none", {})
    assert burn_in.nvlink_copies(host, A, {B: host}, {}) == ("not measured: NVML does not know this GPU", {})
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: False)
    said, copies = burn_in.nvlink_copies(host, A, {B: host}, BRIDGED)
    assert (
        isinstance(said, dict)
        and copies == {}
        and said["gb_s"] == {B: "not measured: the driver grants no access to it"}
    )


def test_a_gpu_is_tested_with_the_others_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but CUDA itself, which is not here: two GPUs on a switch, copies between which go over PCIe."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = [SimpleNamespace(name="NVIDIA H100", uuid=uuid.removeprefix("GPU-")) for uuid in (A, B)]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: found[device if isinstance(device, int) else device.index]
    )
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    for name in ("wrong_products", "wrong_words", "copy_gb_s", "peer_copies"):
        answer = {"wrong_products": {}, "wrong_words": 0, "copy_gb_s": {"to": 50.0, "from": 50.0}, "peer_copies": SLOW}
        monkeypatch.setattr(burn_in, name, lambda *_, said=answer[name], **__: said)
    monkeypatch.setattr(burn_in, "read", lambda: ON_SWITCH)
    assert burn_in.main(["--gpu", B]) == burn_in.FAILED
    line = capsys.readouterr().out
    assert line.startswith('{"passed": false, "wrong": ["NVLinks to GPU-a carry 40.0 GB/s of 478.1", "NVLinks from')
    said = json.loads(line)
    assert (said["uuid"], said["nvlink"]["gb_s"]) == (B, {A: {"to": 40.0, "from": 41.0, "norm": 478.12}})
    monkeypatch.setattr(burn_in, "peer_copies", lambda *_: FAST)
    wide = {uuid: replace(links, pcie_gb_s=256.0) for uuid, links in ON_SWITCH.items()}
    monkeypatch.setattr(burn_in, "read", lambda: wide)
    assert burn_in.main(["--gpu", B]) == burn_in.FAILED
    said = json.loads(capsys.readouterr().out)
    assert (said["wrong"], said["least_gb_s"]) == (["50.0 GB/s to or from the host"], 64.0)
    monkeypatch.setattr(burn_in, "read", lambda: ON_SWITCH)
    assert burn_in.main([]) == 0
    assert [list(json.loads(line)["nvlink"]["gb_s"]) for line in capsys.readouterr().out.splitlines()] == [[B], [A]]

    one_down = without(ON_SWITCH, B, 1)
    monkeypatch.setattr(burn_in, "read", lambda: one_down)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found[1])
    assert burn_in.main(["--gpu", B]) == burn_in.FAILED, "leased alone"
    said = json.loads(capsys.readouterr().out)
    assert said["wrong"] == ["1 of 18 NVLinks are down, others' here are up"]
    assert (said["nvlink"]["down"], said["nvlink"]["gb_s"]) == (1, "not measured: no peer visible")

    def unreadable() -> dict[str, Links]:
        raise Unreadable("the package nvidia-ml-py is not installed")

    monkeypatch.setattr(burn_in, "read", unreadable)
    assert burn_in.main(["--gpu", B]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["nvlink"] == "not measured: the package nvidia-ml-py is not installed"


READS = """
import json
from dataclasses import asdict
from stoker_trainer.links import Unreadable, read
try:
    print(json.dumps({uuid: asdict(one) for uuid, one in read().items()}))
except Unreadable as error:
    print(error)
"""


def test_nvml_says_where_links_lead_and_what_they_carry(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path)
    switched = scenario.add_gpu(nvlinks_up=17, pcie_gen_max=5, pcie_width_max=16, pcie_gen=1, pcie_width=8)
    bridged = scenario.add_gpu(
        nvlinks=4, nvlinks_up=4, nvlink_to=0, nvlink_mbps=14062, pcie_gen_max=3, pcie_width_max=4
    )
    none = scenario.add_gpu(nvlinks=None, pcie_gen_max=None)
    try:
        env = os.environ | scenario.write().env()
    except NoCompiler as error:
        pytest.skip(str(error))
    found = json.loads(_printed(READS, env))
    bus = "00000000:1b:00"
    assert found == {
        switched.uuid: {"bus": bus, "ends": [SWITCH] * 17 + [DOWN], "link_gb_s": 26.562, "pcie_gb_s": 64.0},
        bridged.uuid: {"bus": "00000000:1c:00", "ends": [bus] * 4, "link_gb_s": 14.062, "pcie_gb_s": 4.0},
        none.uuid: {"bus": "00000000:1d:00", "ends": [], "link_gb_s": 0.0, "pcie_gb_s": 0.0},
    }
    scenario.fault("nvmlDeviceGetNvLinkRemoteDeviceType", code=13)  # an old driver
    scenario.write()
    assert json.loads(_printed(READS, env))[switched.uuid]["ends"] == [""] * 17 + [DOWN]


def test_without_the_package_or_the_driver_it_says_so(tmp_path: Path) -> None:
    assert _printed(READS, dict(os.environ)).startswith("NVML: ")
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert _printed(READS, env) == "the package nvidia-ml-py is not installed"


def _printed(program: str, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
