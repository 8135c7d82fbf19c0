"""Models and their types: the shipped table, and rows that are given."""

from __future__ import annotations

import pytest

from stoker.spec.gpu_types import GpuTypes, parse_rows


@pytest.mark.parametrize(
    ("model", "gpu_type"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA-H100-PCIe", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA-GB200", "gb200"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "mig-1g.10gb"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "a100-shared"),
        ("NVIDIA GeForce RTX 4090", "unknown"),
        ("H1000", "unknown"),
        ("unknown", "unknown"),
    ],
)
def test_a_gpu_has_one_type(model: str, gpu_type: str) -> None:
    assert GpuTypes().of(model) == gpu_type


def test_given_rows_come_before_shipped_ones_and_the_longest_counts() -> None:
    types = GpuTypes(parse_rows(["GeForce RTX 4090=rtx4090", "h100 nvl=h100-nvl", "T4=small"]))
    found = [
        types.of(model) for model in ("NVIDIA GeForce RTX 4090", "NVIDIA H100 NVL", "NVIDIA H100 PCIe", "Tesla T4")
    ]
    assert found == ["rtx4090", "h100-nvl", "h100", "small"]
    for name in ("rtx4090", "h100-nvl", "h100", "a100-shared", "mig-1g.10gb", "mig-1c.3g.40gb"):
        assert types.knows(name) and not types.knows(f"{name}x")


@pytest.mark.parametrize("text", ["h100", "=h100", "h100=", "h100=H100", "h100=unknown", "h100=gpus", "x=a b"])
def test_a_wrong_row_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        parse_rows([text])
