"""Whether GPUs compute, remember and carry what they should: a test of seconds before one takes jobs again.

    python -m stoker_trainer.burn_in [--gpu UUID] [--seconds S] [--memory-share X] [--least-gb-s N]

Of each visible GPU, or of the one that is named, one after the other: products of matrices of -1, 0 and 1, which every
precision gets exactly right; a pattern in most of its free memory, and its inverse; copies from and to the host, and
over NVLink from and to the other visible GPUs. Prints one JSON object a line; what was not measured says so. Exits with
FAILED if a GPU failed, ABSENT if there is none or not the one that is named, 1 if the test itself broke. Never trains;
knows nothing of jobs. Run by the operator's burn-ins and by administrators (docs/gpu-health.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .links import DOWN, Copies, Links, Unreadable, faults, norm_gb_s, read

SIZE = 2048
"""Of the matrices of -1, 0 and 1: sums of so many products stay within 256, which every precision holds exactly, in
whatever order and precision they are added up."""
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_HOSTS_SIZE = 128
"""A host takes minutes for large ones of 16 bits."""
_WORD = 8
_STEP = -7046029254386353131
"""An odd number (2**64 over the golden ratio): word n is n times it, so that neighbours share no bits."""
_COPY_BYTES = 1 << 28
_OF_THE_LINK = 0.25
"""Of what its PCIe link could carry. Copies reach 0.8 of it as a rule, so a link of 16 lanes that runs on 4 fails."""

FAILED, ABSENT = 3, 4
"""Exit codes, which the operator reads (`stoker.life.burn_in`)."""

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def wrong_products(
    device: torch.device, seconds: float, multiply: Multiply = torch.matmul, size: int = SIZE
) -> dict[str, int]:
    """Precision → wrong elements of all products, each repeated for its part of the time, once at least."""
    a_NN, b_NN = matrices(size)
    exact_NN = exact(a_NN, b_NN).to(device)
    found = {}
    for dtype in PRECISIONS:
        a, b = a_NN.to(device, dtype), b_NN.to(device, dtype)
        expected = exact_NN.to(dtype)
        until, wrong, first = time.monotonic() + seconds / len(PRECISIONS), 0, True
        while first or time.monotonic() < until:
            first = False
            wrong += int((multiply(a, b) != expected).sum())
        found[str(dtype).removeprefix("torch.")] = wrong
    return found


def matrices(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same ones each time."""
    made = torch.Generator().manual_seed(20)
    a_NN, b_NN = (torch.randint(-1, 2, (size, size), generator=made) for _ in range(2))
    return a_NN, b_NN


def exact(a_NN: torch.Tensor, b_NN: torch.Tensor) -> torch.Tensor:
    """The product, worked out on the host."""
    return (a_NN.double() @ b_NN.double()).float()


def wrong_words(device: torch.device, size_bytes: int, piece_bytes: int = 1 << 28) -> int:
    """Words that do not hold what was written, of a pattern and of its inverse, in `size_bytes` of memory."""
    count = max(1, min(piece_bytes, size_bytes) // _WORD)
    many = max(1, size_bytes // (count * _WORD))
    pieces = [torch.empty(count, dtype=torch.int64, device=device) for _ in range(many)]
    wrong = 0
    for invert in (False, True):
        fill(pieces, invert=invert)
        wrong += wrong_in(pieces, invert=invert)
    return wrong


def fill(pieces: list[torch.Tensor], *, invert: bool) -> None:
    for number, piece in enumerate(pieces):
        _pattern(piece, number, invert=invert)


def wrong_in(pieces: list[torch.Tensor], *, invert: bool) -> int:
    """Words of filled pieces that are something else now."""
    spare = torch.empty_like(pieces[0])
    return sum(int((piece != _pattern(spare, number, invert=invert)).sum()) for number, piece in enumerate(pieces))


def _pattern(piece: torch.Tensor, number: int, *, invert: bool) -> torch.Tensor:
    """Word n of all pieces is n times _STEP, inverted or not: an address that answers for another shows."""
    begin = number * len(piece)
    torch.arange(begin, begin + len(piece), out=piece)
    piece.mul_(_STEP)
    return piece.bitwise_not_() if invert else piece


def copy_gb_s(device: torch.device) -> dict[str, float]:
    """GB/s to the device from the host, and back."""
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    return {"to": best_gb_s(there, host), "from": best_gb_s(host, there)}


def peer_copies(device: torch.device, peer: torch.device, size_bytes: int = _COPY_BYTES) -> Copies:
    """Between two GPUs."""
    here, there = (torch.empty(size_bytes, dtype=torch.uint8, device=one) for one in (device, peer))
    return Copies(to=best_gb_s(there, here), back=best_gb_s(here, there))


def best_gb_s(target: torch.Tensor, source: torch.Tensor) -> float:
    """Of five copies."""
    return round(max(_rate(target, source) for _ in range(5)), 2)


def _rate(target: torch.Tensor, source: torch.Tensor) -> float:
    _wait(source.device, target.device)
    began = time.perf_counter()
    target.copy_(source)
    _wait(source.device, target.device)
    rate: float = source.nbytes / (time.perf_counter() - began) / 1e9
    return rate


def _wait(*devices: torch.device) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def nvlink_copies(
    device: torch.device, uuid: str, peers: Mapping[str, torch.device], links: Mapping[str, Links]
) -> tuple[dict[str, Any] | str, dict[str, Copies]]:
    """What is printed of the GPU's NVLinks; and the copies, by the peer's uuid.

    `peers`: the other GPUs, `links`: of all that NVML knows, both by uuid.
    """
    own = links.get(uuid)
    if own is None or not own.ends:
        return "not measured: " + ("NVML does not know this GPU" if own is None else "the GPU has none"), {}
    rates: dict[str, Any] = {}
    copies: dict[str, Copies] = {}
    for peer, where in peers.items():
        norm = norm_gb_s(own, links[peer]) if peer in links else 0.0
        if not norm:
            rates[peer] = "not measured: no NVLink that NVML knows joins them"
        elif not torch.cuda.can_device_access_peer(device, where):
            rates[peer] = "not measured: the driver grants no access to it"
        else:
            try:
                copies[peer] = peer_copies(device, where)
            except torch.OutOfMemoryError:
                rates[peer] = "not measured: no memory was free"
                continue
            rates[peer] = {"to": copies[peer].to, "from": copies[peer].back, "norm": round(norm, 2)}
    counts = {"links": len(own.ends), "down": own.ends.count(DOWN), "link_gb_s": own.link_gb_s}
    return {**counts, "gb_s": rates or "not measured: no peer visible"}, copies


def tested(
    device: torch.device,
    peers: Mapping[str, torch.device],
    seconds: float,
    memory_share: float,
    least_gb_s: float | None,
) -> dict[str, Any]:
    """What came out, as it is printed; `wrong` sums it up. A call that fails is a failure of the GPU.

    `peers`: the other visible GPUs, by uuid.
    """
    began = time.monotonic()
    result: dict[str, Any] = {"device": str(device), **_name(device)}
    wrong: list[str] = []
    links, unread = _links(device)
    uuid = result.get("uuid", "")
    try:
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
        result["wrong_products"] = wrong_products(device, seconds, size=SIZE if device.type == "cuda" else _HOSTS_SIZE)
        result["wrong_words"] = wrong_words(device, _memory_bytes(device, memory_share))
        result["copy_gb_s"] = copy_gb_s(device)
        if least_gb_s is None:
            least_gb_s = _OF_THE_LINK * links[uuid].pcie_gb_s if uuid in links else 0.0
        result["least_gb_s"] = round(least_gb_s, 2)
        wrong += [f"{count} wrong elements in {of}" for of, count in result["wrong_products"].items() if count]
        wrong += [f"{count} wrong words in memory" for count in (result["wrong_words"],) if count]
        slowest = min(result["copy_gb_s"].values())
        wrong += [f"{slowest} GB/s to or from the host"] if slowest < least_gb_s else []
        result["nvlink"], copies = (unread, {}) if unread else nvlink_copies(device, uuid, peers, links)
        wrong += faults(links, uuid, copies) if uuid in links else []
    except RuntimeError as error:
        wrong.append(str(error).splitlines()[0][:300])
    return {"passed": not wrong, "wrong": wrong, **result, "seconds": round(time.monotonic() - began, 1)}


def _links(device: torch.device) -> tuple[dict[str, Links], str]:
    """Of each GPU by uuid, and why they are not measured; empty where they are."""
    if device.type != "cuda":
        return {}, "not measured: no GPU"
    try:
        return read(), ""
    except Unreadable as error:
        return {}, f"not measured: {error}"


def _name(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        return {}
    return {"model": torch.cuda.get_device_properties(device).name, "uuid": _uuid(device.index)}


def _uuid(number: int) -> str:
    """As NVML has it."""
    return f"GPU-{getattr(torch.cuda.get_device_properties(number), 'uuid', '')}"


def _memory_bytes(device: torch.device, share: float) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 28
    return int(share * free)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="stoker_trainer.burn_in", description="Test the visible GPUs.")
    parser.add_argument("--gpu", metavar="UUID", help="only this one [default: all that are visible]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each GPU's products [default: 10]")
    parser.add_argument("--memory-share", type=float, default=0.8, help="of its free memory [default: 0.8]")
    parser.add_argument(
        "--least-gb-s", type=float, help="slower copies fail the GPU [default: a quarter of what its PCIe link carries]"
    )
    parser.add_argument("--cpu", action="store_true", help="test the host instead: whether the test itself works")
    given = parser.parse_args(argv)
    count = 0 if given.cpu else torch.cuda.device_count()
    visible = [(_uuid(number), torch.device("cuda", number)) for number in range(count)]
    gpus = [device for uuid, device in visible if given.gpu in (None, uuid)]
    devices = [torch.device("cpu")] if given.cpu else gpus
    if not devices:
        seen = ", ".join(uuid for uuid, _ in visible) or "none"
        sys.stderr.write(f"{given.gpu or 'a GPU'} is not visible here; {seen} is\n")
        return ABSENT
    found = []
    for device in devices:
        peers = {uuid: other for uuid, other in visible if other != device}
        found.append(tested(device, peers, given.seconds, given.memory_share, given.least_gb_s))
        sys.stdout.write(json.dumps(found[-1]) + "\n")
        sys.stdout.flush()
    return 0 if all(one["passed"] for one in found) else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
