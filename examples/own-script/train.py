"""A training script as people write them: plain PyTorch, no import of Stoker, runs by hand too.

    python train.py --epochs 12

What makes it survive preemption is three habits of its own: it saves to a folder, by rename; it loads what is there
when it starts; and on SIGTERM it saves and leaves. The folder is in STOKER_CHECKPOINT_DIR; without Stoker
it uses ./run. Writing STOKER_PROGRESS_FILE is optional: it is what `stoker ls` and the progress bar show.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

FOLDER = Path(os.environ.get("STOKER_CHECKPOINT_DIR", "run"))
SAVED = FOLDER / "last.pt"
BATCH = 64

stop = False


def on_sigterm(signum, frame):
    global stop
    stop = True


def load_data():
    """Training and test images in [0, 1] with their labels; the split is the same in every run."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return images[train], labels[train], images[test], labels[test]


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def save(state):
    """All or nothing: a kill in the middle leaves the older file in place."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    temporary = SAVED.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(SAVED)


def report(epoch, epochs, metrics):
    path = os.environ.get("STOKER_PROGRESS_FILE")
    if path:
        progress = {
            "at": time.time(),
            "step": epoch,
            "totalSteps": epochs,
            "metrics": metrics,
            "checkpoint": {"step": epoch, "path": str(SAVED)},
        }
        temporary = f"{path}.tmp"
        Path(temporary).write_text(json.dumps(progress))
        Path(temporary).replace(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    train_x, train_y, test_x, test_y = (part.to(device) for part in load_data())
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    first = 0
    if SAVED.exists():
        state = torch.load(SAVED, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
        print(f"resumed after epoch {first}", flush=True)

    for epoch in range(first + 1, options.epochs + 1):
        began = time.monotonic()
        model.train()
        order = torch.randperm(len(train_y), generator=torch.Generator().manual_seed(epoch)).to(device)
        for rows in order.split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
            loss.backward()
            optimizer.step()
        rate = len(train_y) / (time.monotonic() - began)
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
        report(epoch, options.epochs, {"loss": loss.item(), "accuracy": accuracy, "samplesPerSecond": rate})
        print(f"epoch {epoch}/{options.epochs}  loss {loss.item():.3f}  test accuracy {accuracy:.2%}", flush=True)
        if stop:
            print("asked to stop: saved and leaving", flush=True)
            return 75
    return 0


if __name__ == "__main__":
    sys.exit(main())
