"""What goes wrong in NVML, and what the child says then: lost GPUs, a driver that goes and comes, no library."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.nvml.frames import Frame, GpuEvent, Trouble, parse
from tests.support.harness import until
from tests.support.nvml_child import command, listening
from tests.support.nvml_scenario import FOREVER, GPU_IS_LOST, UNKNOWN

MISMATCH = 18


def events(heard):
    return [(said.kind, said.index, said.text) for said in heard.all if isinstance(said, GpuEvent)]


@pytest.mark.parametrize("code", [GPU_IS_LOST, 16, 28], ids=["GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"])
def test_a_lost_gpu_has_no_values_and_comes_back(scenario, code):
    one, other = scenario.add_gpu(watts=100), scenario.add_gpu(watts=200)
    with listening(scenario.write().env()) as heard:
        well = heard.wait(Frame)
        scenario.fault(gpu=0, code=code)
        scenario.write()
        lost = heard.wait(Frame, lambda frame: frame.gpus[0].lost)
        heard.wait(Frame, lambda frame: frame.number > lost.number + 8)  # new sessions are tried meanwhile
        scenario.clear_faults()
        scenario.write()
        back = heard.wait(Frame, lambda frame: frame.number > lost.number and not frame.gpus[0].lost)
        found = events(heard)
        between = [frame for frame in heard.frames(back.number) if frame.number >= lost.number]
    assert well.gpus[0].values["power_watts"] == 100 == back.gpus[0].values["power_watts"]
    names = {15: "GPU_IS_LOST", 16: "RESET_REQUIRED", 28: "GPU_NOT_FOUND"}
    assert lost.gpus[0].lost == names[code]
    assert found == [("lost", 0, names[code]), ("recovered", 0, names[code])]
    for frame in between:
        assert frame.gpus[0].uuid == one.uuid and frame.gpus[0].values == {} and frame.gpus[0].processes is None
        assert frame.gpus[1].uuid == other.uuid and frame.gpus[1].values["power_watts"] == 200


def test_a_gpu_that_answers_nothing_but_unknown_errors_is_lost(scenario):
    scenario.add_gpu()
    with listening(scenario.write().env()) as heard:
        heard.wait(Frame)
        scenario.fault(gpu=0, code=UNKNOWN)
        scenario.write()
        lost = heard.wait(Frame, lambda frame: frame.gpus[0].lost)
    assert (lost.gpus[0].lost, lost.gpus[0].values) == ("UNKNOWN", {})


def test_a_gpu_that_vanishes_is_lost_and_one_that_is_awaited_is_found(scenario):
    scenario.add_gpu()
    gone, late = scenario.add_gpu(), scenario.add_gpu(begin=FOREVER)
    with listening(scenario.write().env(), "--expected", "3") as heard:
        heard.wait(Frame)
        gone.end = time.time()
        scenario.write()
        lost = heard.wait(Frame, lambda frame: any(gpu.lost for gpu in frame.gpus))
        late.begin = time.time()
        scenario.write()
        found = heard.wait(Frame, lambda frame: any(gpu.uuid == late.uuid and not gpu.lost for gpu in frame.gpus))
    assert [gpu.uuid for gpu in lost.gpus if gpu.lost] == [gone.uuid]
    assert {gpu.uuid: gpu.lost for gpu in found.gpus}[gone.uuid] == "GPU_NOT_FOUND"


def test_the_driver_goes_and_comes_back_with_counters_at_0(scenario):
    scenario.add_gpu(watts=100)
    with listening(scenario.write().env()) as heard:
        before = heard.wait(Frame)
        down = time.time()
        scenario.restart(down, 1.0)
        scenario.write()
        trouble = heard.wait(Trouble)
        after = heard.wait(Frame, lambda frame: frame.at > down + 1)
    assert trouble.code in ("DRIVER_NOT_LOADED", "UNINITIALIZED")
    assert before.gpus[0].values["energy_joules_total"] > 300_000
    assert after.gpus[0].values["energy_joules_total"] < 100 * (after.at + after.took_s - down - 1) + 1


def test_something_is_reported_at_each_poll_even_if_it_is_trouble(scenario):
    """Else the watch would take the child for stuck."""
    scenario.add_gpu()
    scenario.restart(time.time() - 1, 3600)
    with listening(scenario.write().env()) as heard:
        first = heard.wait(Trouble)
        fifth = heard.wait(Trouble, lambda trouble: trouble.at > first.at + 1)
    assert first.code == fifth.code == "DRIVER_NOT_LOADED"


def test_another_library_than_the_driver_needs_a_new_process(scenario):
    scenario.add_gpu()
    scenario.fault("nvmlInitWithFlags", code=MISMATCH)
    with listening(scenario.write().env()) as heard:
        trouble = heard.wait(Trouble)
        assert heard.process.wait(10) == 3
    assert (trouble.code, trouble.text) == ("BEGIN_ANEW", "LIB_RM_VERSION_MISMATCH")


def test_no_library(tmp_path):
    with listening({"LD_LIBRARY_PATH": str(tmp_path)}) as heard:
        assert heard.wait(Trouble).code in (
            "LIBRARY_NOT_FOUND",
            "DRIVER_NOT_LOADED",
        )  # the latter: a driver is installed


def test_no_gpus_are_trouble_only_where_some_are_expected(scenario):
    with listening(scenario.write().env(), "--expected", "8") as heard:
        assert heard.wait(Trouble).code == "NO_GPUS"
    with listening(scenario.env()) as heard:
        assert heard.wait(Frame).gpus == ()


def test_a_gpu_lost_from_the_begin_is_counted(scenario):
    scenario.add_gpu()
    scenario.add_gpu()
    scenario.fault(gpu=1, code=GPU_IS_LOST)
    with listening(scenario.write().env()) as heard:
        frame = heard.wait(Frame)
    assert [gpu.index for gpu in frame.gpus] == [0]
    assert frame.refused == {"nvmlDeviceGetHandleByIndex_v2:GPU_IS_LOST": 1}


def test_recovery_action_is_reported_when_it_changes(scenario):
    gpu = scenario.add_gpu()
    with listening(scenario.write().env()) as heard:
        heard.wait(Frame)
        gpu.step(time.time(), recovery=2)
        scenario.write()
        event = heard.wait(GpuEvent)
    assert (event.kind, event.code, event.uuid) == ("recovery_action", 2, gpu.uuid)


def test_a_thread_that_hangs_in_the_driver_does_not_hold_up_polls(scenario):
    scenario.add_gpu()
    scenario.fault("nvmlEventSetWait_v2", do="hang")
    with listening(scenario.write().env()) as heard:
        assert len(heard.frames(4)) == 4


def test_a_thread_that_hangs_when_a_new_session_is_due_needs_a_new_process(scenario):
    """NVML must not be shut down under a thread that waits in it."""
    scenario.add_gpu()
    scenario.add_gpu()
    scenario.fault("nvmlEventSetWait_v2", do="hang")
    program = (
        "import sys; from stoker.nvml import poller, __main__ as child;"
        "poller.STOP_WITHIN_S = 1.0; sys.exit(child.main(['--interval', '0.25']))"
    )
    env = {**os.environ, **scenario.write().env()}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env) as child:
        child.stdout.readline()
        scenario.fault(gpu=0, code=GPU_IS_LOST)
        scenario.write()
        said = [parse(line) for line in child.stdout]
        assert child.wait(10) == 3
    assert isinstance(said[-1], Trouble) and said[-1].code == "BEGIN_ANEW"
    frames = [one for one in said if isinstance(one, Frame)]
    assert frames[-1].gpus[0].lost and frames[-1].gpus[1].values, "the other GPU is read to the last"


def test_the_child_ends_with_the_pipe(scenario):
    scenario.add_gpu()
    env = {**os.environ, **scenario.write().env()}
    with subprocess.Popen(command(), stdout=subprocess.PIPE, env=env) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(10) == 0


def test_the_child_ends_with_its_parent_even_in_the_middle_of_a_hang(scenario, tmp_path):
    """The parent is killed, the child hangs in the driver and could not notice the closed pipe."""
    scenario.add_gpu()
    env = {**os.environ, **scenario.write().env()}
    pid_file = tmp_path / "pid"
    program = (
        "import pathlib, subprocess, sys, time;"
        "child = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE); child.stdout.readline();"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(pid_file), *command()], env=env) as parent:
        until(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
        scenario.fault("nvmlDeviceGetTotalEnergyConsumption", do="hang")
        scenario.write()
        until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == "nvml-hangs")
        parent.kill()
        until(lambda: not alive(pid))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_the_child_needs_no_privileges(scenario, tmp_path):
    scenario.add_gpu()
    env = {**os.environ, **scenario.write().env()}
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o755)
    link = tmp_path / "libnvidia-ml.so.1"
    library = link.resolve().read_bytes()
    link.unlink()
    link.write_bytes(library)
    unprivileged = {"user": 65534, "group": 65534, "extra_groups": []}
    env["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
    argv = [python_for_all(), *command()[1:]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, cwd="/", **unprivileged) as child:
        line = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    assert b'"power_watts":75.0' in line


def test_options_are_checked():
    for options, complaint in ((["--collectors", "fans"], "fans is not one of"), (["--interval", "0"], "at least 0.2")):
        ran = subprocess.run(
            [sys.executable, "-m", "stoker.nvml", *options], capture_output=True, text=True, timeout=30
        )
        assert ran.returncode == 2 and complaint in ran.stderr


def python_for_all():
    """An interpreter of this version that every user may run."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            subprocess.run(
                [python, "-c", ""], user=65534, group=65534, extra_groups=[], cwd="/", check=True, timeout=30
            )
        except OSError:
            continue
        return python
    return pytest.skip("no interpreter here that an unprivileged user may run")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
