"""What the NVML child writes is what its parent reads."""

import pytest

from stoker.nvml.frames import Frame, GpuEvent, GpuReading, MigReading, Process, Trouble, parse

PROCESSES = (Process(7, 1 << 30, 0.5), Process(8))
MIG = MigReading("MIG-1", "1g.10gb", 1, {"memory_used_bytes": 5.0}, (), 3)


@pytest.mark.parametrize(
    "said",
    [
        Frame(0, 1.5, 2.5, 0.1),
        Frame(
            number=3,
            at=1.5,
            mono_s=2.5,
            took_s=0.001,
            driver="590.44.01",
            cuda="13.1",
            gpus=(
                GpuReading(0, "GPU-0", "", {"model": "H200"}, {"power_watts": 75.25}, PROCESSES, (MIG,)),
                GpuReading(1, "GPU-1", "GPU_IS_LOST"),
            ),
            refused={"nvmlDeviceGetPowerUsage:UNKNOWN": 2},
        ),
        GpuEvent(1.5, "GPU-0", 0, "xid", 79, "GPU instance 1"),
        Trouble(1.5, "DRIVER_NOT_LOADED", "text"),
    ],
    ids=["an empty frame", "a frame", "an event", "trouble"],
)
def test_a_line_is_read_as_it_was_written(said):
    assert parse(said.line()) == said and "\n" not in said.line()


@pytest.mark.parametrize(
    "line", ["", "Segmentation fault", "[]", "{}", '{"v":2,"says":"frame"}', '{"v":1,"says":"more"}', '{"v":1}']
)
def test_what_is_no_line_of_ours_is_refused(line):
    with pytest.raises(ValueError):
        parse(line)
