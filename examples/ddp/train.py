"""Data-parallel training that torchrun starts, on any number of workers and GPUs; a page of PyTorch.

    stoker run --workers 2 --gpus 1 -- torchrun examples/ddp/train.py --steps 300

Every process learns from its own share of the data; DDP averages their gradients. It saves by time and when it is
asked to stop, and goes on from there.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker_job import STOPPED, Stop, report

BATCH = 256  # samples a step, over all processes
SAVE_EVERY_S = 60


def batch(step: int, share: int, of: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on the plane, and whether they lie in the ring between radius 1 and 2; by the step alone, to resume."""
    points = 4 * torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(step)) - 2
    inside = ((radius := points.norm(dim=1)) > 1) & (radius < 2)
    return points[share::of].to(device), inside[share::of].float().to(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")  # ranks and the address are in the environment
    stop = Stop()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    saved = Path(os.environ.get("STOKER_CHECKPOINT_DIR", "checkpoints"), "ddp.pt")  # one folder for all workers
    saved.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    if saved.exists():
        state = torch.load(saved, map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        if rank == 0:
            print(f"resumed after step {done}", flush=True)

    def save(step: int) -> None:
        if rank == 0:  # weights and optimizer are equal on all of them
            fresh = saved.with_suffix(".new")
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, fresh)
            fresh.replace(saved)  # whole or not at all
            report(step, checkpoint=saved)

    last_save = time.monotonic()
    for step in range(done + 1, steps + 1):
        points, inside = batch(step, rank, ranks, device)
        loss = nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            report(step, total_steps=steps, loss=loss.item())
        if stop.asked():  # the same answer on every process
            save(step)
            sys.exit(STOPPED)
        if time.monotonic() - last_save > SAVE_EVERY_S:
            save(step)
            last_save = time.monotonic()
    save(steps)
    if rank == 0:
        print(f"done: step {steps}, loss {loss.item():.3f} on {ranks} processes", flush=True)


if __name__ == "__main__":
    main()
