"""Models and their types: the shipped table, and rows that are given."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stoker.spec.gpu_types import SHIPPED, GpuTypes, parse_rows
from stoker.spec.quantity import NEW
from stoker.spec.queue import QueueSpec
from stoker.spec.queue_tree import links, unknown_types


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
        ("NVIDIA-A100-SXM4-80GB-MIG-1c.3g.40gb", "mig-1c.3g.40gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "mig-1g.10gb.me"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb-me", "mig-1g.24gb-me"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "mig-1g.10gb.shared"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "a100-shared"),
        ("NVIDIA GeForce RTX 4090", "unknown"),
        ("H1000", "unknown"),
        ("unknown", "unknown"),
    ],
)
def test_a_gpu_has_one_type(model: str, gpu_type: str) -> None:
    assert GpuTypes().of(model) == gpu_type and (gpu_type == "unknown" or GpuTypes().knows(gpu_type))


def test_what_is_shared_is_a_type_of_its_own_renamed_or_not() -> None:
    sliced, whole, types = "NVIDIA A100 MIG 1g.10gb", "NVIDIA A100", GpuTypes()
    for name in ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared", "nvidia.com/gpu"):
        assert types.offered_as(name, f"{sliced}-SHARED") == "mig-1g.10gb.shared"
    assert types.offered_as("nvidia.com/gpu.shared", sliced) == "mig-1g.10gb.shared"
    assert types.offered_as("nvidia.com/gpu", f"{whole}-SHARED") == "a100-shared"
    assert types.offered_as("nvidia.com/gpu.shared", whole) == "a100-shared"


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


def test_a_stored_type_that_no_gpu_can_be_of_counts_for_nothing() -> None:
    named = {"guarantee": {"gpus": 1, "gpuTypes": {"gpus": 8, "h100": 2}}}
    stored = QueueSpec.model_validate(named)
    assert links({"q": stored})["q"].guarantee.of_types == {"h100": 2}
    assert unknown_types(stored, SHIPPED).startswith("no GPU can be of type gpus; ")
    with pytest.raises(ValidationError, match="gpus is no type of GPU"):
        QueueSpec.model_validate(named, context=NEW)
