"""Owns what a checkpoint contains: the training's state to bytes and back. Called by `main` and the loop.

Rank 0 alone touches the files, and shares what it read: all ranks go on from the same bytes even where a folder's view
differs between hosts. Loading never runs code: `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import logging
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .checkpoint import CheckpointFolder, Saved, of_another
from .config import completed, differences
from .errors import BadConfig, out_of_memory
from .training import Cursor, Tally, Training
from .tune import Tuned

_LENGTH = ("config.steps:", "config.epochs:", "maxSteps:")
_UNFIT = (KeyError, RuntimeError, TypeError, ValueError, EOFError, pickle.UnpicklingError)
log = logging.getLogger(__name__)


class Keeper:
    """Saves and restores one training. `folder` is None on ranks other than 0 and where no folder was given."""

    def __init__(
        self,
        training: Training,
        trajectory: dict[str, Any],
        folder: CheckpointFolder | None,
        *,
        extend: bool = False,
        source: tuple[Path, int | None] | None = None,
    ) -> None:
        """With `extend` more steps or epochs than a checkpoint's are no other training. `source`: another training's
        checkpoints and which of them (None: the newest), for want of any of its own."""
        self._training, self._trajectory, self._folder, self._extend = training, trajectory, folder, extend
        self._source = source
        self.taken_over: Path | None = None
        """The other training's checkpoint that this one goes on from since this start, as rank 0 knows it."""
        self.step: int | None = None
        """The newest good checkpoint's, as rank 0 knows it."""
        self.path: Path | None = None
        self._tried: int | None = None  # equal on all ranks, so that all or none take part in a save

    def save(self) -> bool:
        """Publishes the state as of the last finished step; true where a new checkpoint is there. All ranks call it.

        Raises: Superseded.
        """
        t = self._training
        if self._tried == t.cursor.step:
            return False
        self._tried = t.cursor.step
        state = gathered_state(t)
        if self._folder is None:
            return False
        about = {
            "worldSize": t.ranks.world,
            "precision": t.precision,
            "torch": torch.__version__,
            "trajectory": self._trajectory,
            "data": t.data.facts.get("splitDigest"),
        }
        try:
            self.path = self._folder.publish(t.cursor.step, pack(state), about)
        except OSError as error:  # the disk is full or gone: the training itself is sound, and the older ones are there
            log.error("no checkpoint at step %d: %s", t.cursor.step, error)
            return False
        self.step = t.cursor.step
        return True

    def resume(self) -> bool:
        """Takes up the newest checkpoint that is whole; false where there is none. All ranks call it.

        Raises: BadConfig, on all ranks, where it belongs to another training.
        """
        t = self._training
        found = refusal = None
        try:
            found = self._find() if t.ranks.rank == 0 else None
        except BadConfig as error:
            refusal = str(error)
        # Said by all: a rank that leaves alone is a lost peer to the others, which gloo may miss until its time-out.
        refused = t.ranks.from_first(None if refusal is None else refusal.encode())
        if refused is not None:
            raise BadConfig(refused.decode())
        data = t.ranks.from_first(found)
        others = t.ranks.from_first(b"others" if self.taken_over is not None else None) is not None
        if data is None:
            return False
        unpack(t, data)
        if self._extend or others:
            if t.cursor.step >= t.total_steps:
                raise BadConfig(f"step {t.cursor.step} is done and {t.total_steps} steps are wanted; ask for more")
            t.tally.target_reached, t.tally.stale = False, 0
        if not others:
            self.step = self._tried = t.cursor.step
        return True

    def _find(self) -> bytes | None:
        for saved in self._folder.newest_first() if self._folder is not None else ():
            if self._fits(saved, longer_too=self._extend):
                self.path = saved.path
                return saved.state
        for saved in of_another(*self._source) if self._source is not None else ():
            if self._fits(saved, longer_too=True):
                self.taken_over = saved.path
                return saved.state
        return None

    def _fits(self, saved: Saved, *, longer_too: bool) -> bool:
        """Whether the state can be taken up; it then is.

        Raises: BadConfig where it belongs to another training.
        """
        changed = differences(completed(saved.manifest.get("trajectory")), self._trajectory)
        longer = [change for change in changed if change.startswith(_LENGTH)]
        if changed and (not longer_too or longer != changed):
            hint = "--extend goes on with them" if longer == changed else "submit a new job for them"
            if longer_too:
                hint = "only its length may change; to begin with its weights alone there is initFrom (--init-from)"
            raise BadConfig(f"{saved.path} belongs to a training with other settings ({'; '.join(changed)}); {hint}")
        there, here = saved.manifest.get("data"), self._training.data.facts.get("splitDigest")
        if there not in (None, here):  # None: of a trainer that did not write it
            raise BadConfig(
                f"config.data: {self._training.config.config.data} has changed since {saved.path} "
                f"(sha256:{there} there, sha256:{here} now); restore it, or submit a new job"
            )
        try:
            unpack(self._training, saved.state)
        except _UNFIT as error:
            if out_of_memory(error):
                raise
            why = f"{type(error).__name__}: {error}"
            if self._folder is not None and saved.path.parent == self._folder.path:
                self._folder.mark_bad(saved.path, why)
            else:
                log.warning("checkpoint %s can't be taken up (%s)", saved.path, why)
            return False
        return True


def gathered_state(training: Training) -> dict[str, Any]:
    """The whole state: tensors of the training itself, no copies. All ranks call it; all get the same."""
    cuda = training.device.type == "cuda"
    return {
        "model": training.net.state_dict(),
        "optimizer": training.update.state(),
        "average": training.average.state() if training.average is not None else {},
        "scaler": training.scaler.state(),
        "rng_cpu": training.ranks.gather(torch.get_rng_state()),
        "rng_cuda": training.ranks.gather(torch.cuda.get_rng_state(training.device)) if cuda else [],
        "cursor": asdict(training.cursor),
        "tally": asdict(training.tally),
        "micro_batch": training.micro_batch,
        "tuned": asdict(training.tuned),
        "world": training.ranks.world,
    }


def pack(state: dict[str, Any]) -> bytes:
    """A torch archive of tensors and plain values."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(training: Training, data: bytes) -> None:
    """Puts a packed state into `training`, on whatever number of ranks and kind of device.

    Raises: one of `_UNFIT` where it does not fit; `training` is then unchanged.
    """
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    pairs = [
        (training.net.state_dict(), state["model"]),
        (training.update.state(), _by_name(training, state["optimizer"])),
        (training.average.state(), _average(state)) if training.average is not None else ({}, state.get("average", {})),
        (training.scaler.state(), state["scaler"]),
    ]
    for live, saved in pairs:
        _check(live, saved)
    cursor, tally, micro = Cursor(**state["cursor"]), Tally.of(state["tally"]), int(state["micro_batch"])
    tuned = Tuned(**state.get("tuned", {}))
    if cursor.consumed >= training.train_rows:  # of a trainer that took a smaller, last batch too
        cursor.epoch, cursor.consumed = cursor.epoch + 1, 0
    rank, world = training.ranks.rank, training.ranks.world
    for live, saved in pairs:
        for name, tensor in live.items():
            tensor.copy_(saved[name])
    training.cursor, training.tally, training.tuned = cursor, tally, tuned
    # Another number of ranks means other shares; what fitted before is still the upper limit.
    training.micro_batch = micro if world == state["world"] else max(1, min(micro, training.micro_batch))
    if rank < len(state["rng_cpu"]):
        torch.set_rng_state(state["rng_cpu"][rank])
    if training.device.type == "cuda" and rank < len(state["rng_cuda"]):
        torch.cuda.set_rng_state(state["rng_cuda"][rank], training.device)


def _average(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The saved average; where its trainer kept none of running statistics, these as they were."""
    saved: dict[str, torch.Tensor] = state.get("average", {})
    names = [name for name in state["model"] if name.endswith(("running_mean", "running_var"))]
    return {name: state["model"][name] for name in names} | saved


def _by_name(training: Training, saved: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An optimizer's state by the parameters' names; formats 1 and 2 had vectors, matrices before norms and biases."""
    out, parameters = {}, sorted(training.net.named_parameters(), key=lambda item: item[1].ndim < 2)
    for kind, tensor in saved.items():
        if "/" in kind or tensor.ndim == 0:
            out[kind] = tensor
            continue
        offset = 0
        for name, p in parameters:
            out[f"{kind}/{name}"] = tensor.as_strided(p.size(), p.stride(), offset)
            offset += p.numel()
    return out


def _check(live: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    if live.keys() != saved.keys():
        raise KeyError(f"expected {sorted(live)}, got {sorted(saved)}")
    for name, tensor in live.items():
        if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
            raise ValueError(f"{name}: expected {tuple(tensor.shape)}, got {tuple(saved[name].shape)}")
