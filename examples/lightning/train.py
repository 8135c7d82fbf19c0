"""Lightning on Stoker: handwritten digits, on one worker or several.

    stoker run --workers 2 --gpus 1 -- python examples/lightning/train.py --epochs 20

The callback shows progress and saves when the job is stopped; what it saved is where the next attempt goes on, in the
middle of an epoch too: the loader says where it is.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import os

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from stoker_job.lightning import StokerCallback, last_checkpoint


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )  # fmt: skip

    def training_step(self, batch):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Places(Sampler):
    """The rows of this rank, in an order made from seed and epoch alone, from any place on."""

    def __init__(self, rows, rank, ranks):
        self.rows, self.rank, self.ranks = rows, rank, ranks
        self.epoch, self.skip = 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.rows // self.ranks

    def __iter__(self):
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        begin, self.skip = self.skip, 0
        return iter(order[self.rank :: self.ranks][begin : len(self)])


class Resumable(DataLoader):
    """A loader that Lightning finds again where it was: it saves and loads `state_dict`."""

    taken = 0

    def __iter__(self):
        self.taken = self.sampler.skip // self.batch_size
        for batch in super().__iter__():
            self.taken += 1
            yield batch

    def state_dict(self):
        return {"taken": self.taken % len(self), "epoch": self.sampler.epoch}

    def load_state_dict(self, state):
        self.sampler.skip, self.sampler.epoch = state["taken"] * self.batch_size, state["epoch"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="per process")
    options = parser.parse_args()

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    places = Places(len(images), rank, ranks)
    loader = Resumable(
        TensorDataset(images, torch.tensor(digits.target)), options.batch, sampler=places, drop_last=True
    )
    lightning.seed_everything(1)
    model = Digits()
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        num_nodes=int(os.environ.get("STOKER_WORKERS", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if ranks > 1 else "auto",
        use_distributed_sampler=False,
        callbacks=[StokerCallback()],
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        log_every_n_steps=1,
    )
    resumed = last_checkpoint()
    if resumed:
        print(f"resumed from {resumed}", flush=True)
    trainer.fit(model, loader, ckpt_path=resumed)
    weights = sum(float(weight.detach().double().abs().sum()) for weight in model.parameters())
    print(f"done: step {trainer.global_step} weights {weights:.9f}", flush=True)


if __name__ == "__main__":
    main()
