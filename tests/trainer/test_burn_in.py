"""The burn-in: what it finds of a GPU that computes or remembers wrongly. Here on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from stoker.life.burn_in import FAILED  # noqa: E402
from stoker_trainer import burn_in  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def test_every_precision_holds_every_sum_exactly() -> None:
    """So a wrong element is the hardware's, however the product was added up."""
    sums_NN = burn_in.exact(*burn_in.matrices(burn_in.SIZE))
    assert sums_NN.abs().max() <= 256
    assert all(torch.equal(sums_NN.to(dtype).float(), sums_NN) for dtype in burn_in.PRECISIONS)


def test_products_are_right_and_one_wrong_element_is_found() -> None:
    right = burn_in.wrong_products(CPU, 0.0, size=128)
    assert right == {"float32": 0, "bfloat16": 0, "float16": 0}

    def flips(a_NN: torch.Tensor, b_NN: torch.Tensor) -> torch.Tensor:
        product_NN = a_NN @ b_NN
        product_NN[3, 5] += 1
        return product_NN

    assert burn_in.wrong_products(CPU, 0.0, flips, size=128) == {"float32": 1, "bfloat16": 1, "float16": 1}


@pytest.mark.parametrize("invert", [False, True])
def test_a_bit_that_changes_and_an_address_that_answers_for_another_are_found(invert: bool) -> None:
    assert burn_in.wrong_words(CPU, 1 << 20, piece_bytes=1 << 18) == 0
    pieces = [torch.empty(1000, dtype=torch.int64) for _ in range(3)]
    burn_in.fill(pieces, invert=invert)
    assert burn_in.wrong_in(pieces, invert=invert) == 0
    pieces[2][17] ^= 1 << 40
    assert burn_in.wrong_in(pieces, invert=invert) == 1
    alias = [pieces[0], pieces[0], pieces[2]]
    burn_in.fill(alias, invert=invert)
    assert burn_in.wrong_in(alias, invert=invert) == 1000


def test_it_says_what_it_found_and_exits_by_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--seconds", "0", "--cpu", "--memory-share", "0.01"]
    done = subprocess.run([sys.executable, "-m", "stoker_trainer.burn_in", *small], capture_output=True, text=True)
    said = json.loads(done.stdout)
    assert (done.returncode, said["passed"], said["wrong"], said["wrong_words"]) == (0, True, [], 0), done.stderr
    assert said["nvlink"] == "not measured: no GPU"
    assert set(said["copy_gb_s"]) == {"to", "from"} and min(said["copy_gb_s"].values()) > 0
    assert burn_in.main([*small, "--least-gb-s", "1e9"]) == burn_in.FAILED
    said = json.loads(capsys.readouterr().out)
    assert not said["passed"] and [one.endswith(" GB/s to or from the host") for one in said["wrong"]] == [True]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert burn_in.main(["--seconds", "0"]) == burn_in.ABSENT
    assert "a GPU is not visible here; none is" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"a{number}"))
    assert burn_in.main(["--gpu", "GPU-b"]) == burn_in.ABSENT
    assert "GPU-b is not visible here; GPU-a0, GPU-a1 is" in capsys.readouterr().err
    assert burn_in.FAILED == FAILED
