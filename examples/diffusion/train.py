"""A small diffusion model on Stoker: it learns to draw handwritten digits out of noise (DDPM).

    stoker run --gpus 1 -- python examples/diffusion/train.py --steps 2000

Draws eight of each digit into `samples.txt` of the job's output at the end. Step n takes rows and noise that n alone
decides, so a resumed run ends like one that was left alone.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import os
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from stoker_job import STOPPED, Stop, report

SAVED = Path(os.environ.get("STOKER_CHECKPOINT_DIR", "checkpoints"), "last.pt")
OUTPUT = Path(os.environ.get("STOKER_OUTPUT_DIR", "output"))
TIMES, BATCH, PIXELS, DIGITS = 100, 256, 64, 10
NOISE = torch.linspace(1e-3, 0.12, TIMES)  # what each time adds
KEPT = (1 - NOISE).cumprod(0)  # what is left of the picture by then


class Denoiser(nn.Module):
    """The noise in a picture at a time, of a digit."""

    def __init__(self, width=256):
        super().__init__()
        self.time, self.digit = nn.Embedding(TIMES, width), nn.Embedding(DIGITS, width)
        self.enter, self.leave = nn.Linear(PIXELS, width), nn.Linear(width, PIXELS)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(3)
        )

    def forward(self, picture, time, digit):
        x, about = self.enter(picture), self.time(time) + self.digit(digit)
        for block in self.blocks:
            x = x + block(x + about)
        return self.leave(x)


def draw(model, digits, device):
    """Pictures of these digits, out of noise, from the last time to the first."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(len(digits), PIXELS, generator=random).to(device)
    digits = digits.to(device)
    for t in reversed(range(TIMES)):
        noise = model(x, torch.full_like(digits, t), digits)
        x = (x - NOISE[t] / (1 - KEPT[t]).sqrt() * noise) / (1 - NOISE[t]).sqrt()
        if t:
            x = x + NOISE[t].sqrt() * torch.randn(x.shape, generator=random).to(device)
    return x.cpu().view(-1, 8, 8)


def text(picture):
    return "\n".join("".join(" .:-=+*#%@"[int((v.clamp(-1, 1) + 1) * 4.5)] for v in row) for row in picture)


def save(state):
    """All or nothing: a kill in the middle leaves the older file in place."""
    SAVED.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, SAVED.with_suffix(".new"))
    SAVED.with_suffix(".new").replace(SAVED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()

    stop = Stop()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    pictures = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1
    labels = torch.tensor(digits.target)
    torch.manual_seed(1)
    model = Denoiser().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if SAVED.exists():
        state = torch.load(SAVED, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"resumed after step {step}", flush=True)

    while step < options.steps:
        random = torch.Generator().manual_seed(step)
        rows = torch.randint(len(pictures), (BATCH,), generator=random)
        times = torch.randint(TIMES, (BATCH,), generator=random)
        noise = torch.randn(BATCH, PIXELS, generator=random)
        kept = KEPT[times].unsqueeze(1)
        noisy = (kept.sqrt() * pictures[rows] + (1 - kept).sqrt() * noise).to(device)
        loss = nn.functional.mse_loss(model(noisy, times.to(device), labels[rows].to(device)), noise.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        report(step, total_steps=options.steps, loss=loss)
        asked = stop.asked()
        if asked or step % 500 == 0 or step == options.steps:
            save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
            report(step, checkpoint=SAVED)
            print(f"step {step}/{options.steps}  loss {loss.item():.4f}", flush=True)
        if asked:
            sys.exit(STOPPED)

    model.eval()
    with torch.no_grad():
        drawn = draw(model, torch.arange(DIGITS).repeat(8), device)
    # Of what was drawn for a digit, how much lies nearest to a real picture of that digit.
    nearest = labels[torch.cdist(drawn.flatten(1), pictures).argmin(1)]
    right = (nearest == torch.arange(DIGITS).repeat(8)).float().mean().item()
    report(step, recognised=right)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "samples.txt").write_text("\n\n".join(map(text, drawn)) + "\n")
    weights = sum(float(weight.detach().double().abs().sum()) for weight in model.parameters())
    print(f"done: step {step} recognised {right:.2f} weights {weights:.9f}", flush=True)


if __name__ == "__main__":
    main()
