"""Owns what a training is made of and how it is set up: device, data on it, model, update, position. Called by `main`;
used by step, evaluation, loop, save and report.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import fp8, optim
from .blocks import Blocks
from .config import TrainerConfig
from .distributed import Place, Ranks
from .errors import BadConfig, DeviceUnavailable
from .exchange import Exchange
from .flat import FlatModel, buffers
from .graph import StepGraph, reason_against
from .measure import Clock, Energy
from .precision import LossScaler, resolve, switch_tf32
from .recipe import Recipe, Source
from .recipes import RECIPES
from .settings import Optimizer
from .tune import Tuned

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Cursor:
    """Where in the data the training is: everything random follows from it. An epoch's end is the next one's start."""

    seed: int
    epoch: int = 0
    consumed: int = 0
    """Samples of this epoch, over all ranks."""
    step: int = 0


@dataclass(slots=True)
class Tally:
    """The trajectory's record: it is saved in checkpoints and rolls back with them."""

    seconds: float = 0.0
    """Training, evaluation and saving; not starting, not work that was lost."""
    samples: int = 0
    evaluated_step: int = -1
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the newest evaluation."""
    best: dict[str, float] = field(default_factory=dict)
    """Of each metric, the best of any evaluation."""
    watched_metric: str = ""
    """It decides which weights are the best; its best value, and where that was measured."""
    watched: float | None = None
    best_step: int = 0
    stale: int = 0
    """Evaluations since."""
    target_reached: bool = False
    time_to_target_s: float | None = None
    joules: float | None = 0.0
    """Of all ranks' GPUs; None where any of them could not be read."""
    energy_to_target_j: float | None = None

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Tally:
        """The tally of a checkpoint; those of format 1 knew two metrics by name."""
        named = {old: saved.pop(old) for old in ("accuracy", "test_loss", "best_accuracy") if old in saved}
        if named and named["accuracy"] is not None:
            saved["metrics"] = {"accuracy": named["accuracy"], "loss": named["test_loss"]}
            saved["best"] = {"accuracy": named["best_accuracy"]}
        return cls(**{"joules": None, **saved})


@dataclass
class Training:
    config: TrainerConfig
    device: torch.device
    precision: str
    ranks: Ranks
    data: Source
    recipe: Recipe
    blocks: Blocks
    flat: FlatModel
    exchange: Exchange
    update: optim.Update
    average: optim.Average | None
    scaler: LossScaler
    cursor: Cursor
    micro_batch: int
    """Samples a rank takes at a time; halved where memory is short."""
    clock: Clock
    energy: Energy
    graph: StepGraph | None = None
    """Records the step on a whole batch, where that is asked for and can be."""
    memory_peaks: list[int] = field(default_factory=list)
    """Of each rank, as of the newest evaluation or save."""
    tally: Tally = field(default_factory=Tally)
    tuned: Tuned = field(default_factory=Tuned)
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    """Of the newest step, over all ranks; on the device."""
    gradient_norm: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    learning_rate: float = 0.0

    @property
    def net(self) -> nn.Module:
        return self.recipe.net

    @property
    def rule(self) -> Optimizer:
        """The optimizer's settings with this training's own peak: what was found, else what is given for its batch."""
        settings = self.config.config
        peak = self.tuned.learning_rate or settings.optimizer.learning_rate * settings.rate_factor
        return replace(settings.optimizer, learning_rate=peak)

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the weights are those to evaluate and to export: their average where one is kept."""
        return self.average.in_place() if self.average is not None else nullcontext()

    @property
    def watched(self) -> tuple[str, str]:
        """The metric by which weights are the best, and which way: patience's, else the target's, else the recipe's."""
        rule = self.config.stop.patience or self.config.stop.target
        name = rule.metric if rule is not None else next(iter(self.recipe.metrics))
        return name, (rule.mode if rule is not None else None) or self.recipe.metrics[name]

    @property
    def ended(self) -> str | None:
        """Why there is no next step; None: there is."""
        tally, rule = self.tally, self.config.stop.patience
        if tally.target_reached:
            return "the target is reached"
        if rule is not None and tally.stale >= rule.evaluations:
            value = "?" if tally.watched is None else f"{tally.watched:.4g}"
            return f"no better {rule.metric} in {tally.stale} evaluations (best {value} at step {tally.best_step})"
        return f"all {self.total_steps} steps are done" if self.cursor.step >= self.total_steps else None

    @property
    def train_rows(self) -> int:
        """Of the training samples, those that an epoch takes."""
        return rows_of_epoch(self.net, self.data.train_rows, self.config.config.batch_size)

    @property
    def total_steps(self) -> int:
        steps = self.config.config.total_steps(self.train_rows)
        return min(steps, self.config.stop.max_steps or steps)


def device_for(env: Mapping[str, str], place: Place) -> torch.device:
    """The rank's GPU, or the CPU where none was promised and none is there (or only simulated ones).

    Raises: DeviceUnavailable where a GPU was promised (by name in STOKER_GPU_UUIDS, else by number in STOKER_GPUS) and
    can't be used: training goes on elsewhere, not a hundred times slower here; BadConfig where this worker has fewer
    GPUs than ranks.
    """
    uuids = [uuid for uuid in env.get("STOKER_GPU_UUIDS", "").split(",") if uuid]
    promised = len(uuids) or int(env.get("STOKER_GPUS") or 0)
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if env.get("STOKER_SIMULATED_GPUS") == "1" or not (promised or usable):
        return torch.device("cpu")
    if place.local_rank >= usable:
        if place.local_rank < promised:
            built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA: take an image with CUDA"
            named = f" ({', '.join(uuids)})" if uuids else ""
            raise DeviceUnavailable(
                f"torch sees {usable} of this worker's {promised} GPUs{named}; "
                f"look at the node's driver (nvidia-smi); torch {torch.__version__} is built with {built}"
            )
        raise BadConfig(f"LOCAL_RANK={place.local_rank}, but only {usable} GPUs are visible")
    device = torch.device("cuda", place.local_rank)
    try:
        torch.empty(1, device=device)  # a GPU that fell off the bus is still counted
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise DeviceUnavailable(f"GPU {place.local_rank} does not answer: {reason}") from None
    return device


def prepare_torch(env: Mapping[str, str], config: TrainerConfig, device: torch.device) -> None:
    """Process-wide switches: threads, determinism, TF32, and where compiled code is kept."""
    if config.config.compile == "blocks" and env.get("STOKER_CHECKPOINT_DIR"):
        kept = Path(env["STOKER_CHECKPOINT_DIR"]).absolute() / "compiled"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    ranks_here = max(1, int(env.get("LOCAL_WORLD_SIZE", "1")))
    share = max(1, len(os.sched_getaffinity(0)) // ranks_here)
    torch.set_num_threads(max(1, int(env.get("OMP_NUM_THREADS", share))))
    if config.config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA's first handle is made
        # Not use_deterministic_algorithms: that imports torch._inductor (3.7 s here) for the compiler's sake.
        torch.set_deterministic_debug_mode("error")
        torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid; it costs a pass per buffer
        torch.backends.cudnn.benchmark = False
    else:
        torch.backends.cudnn.benchmark = True
    if device.type == "cuda":
        torch.cuda.set_device(device)
        switch_tf32(resolve(config.precision, device) == "tf32")


def set_up(config: TrainerConfig, device: torch.device, ranks: Ranks) -> Training:
    """A training at its first step, with the same weights on every rank."""
    settings = config.config
    module = importlib.import_module(RECIPES[config.recipe].module)
    source: Source = module.load(settings, device)
    torch.manual_seed(settings.seed)
    recipe: Recipe = module.Recipe(settings, source)
    check_metrics(config, recipe)
    if not recipe.blocks and (settings.compile == "blocks" or settings.activation_checkpointing):
        raise BadConfig(
            f"compile and activationCheckpointing: the recipe {config.recipe} has no blocks; leave them out"
        )
    recipe.net.to(device, memory_format=torch.channels_last if device.type == "cuda" else torch.contiguous_format)
    flat = FlatModel(recipe.net, ranks.world, recipe.groups)
    _share([flat.parameters], ranks)  # CPUs of different kinds may round an initialisation differently
    # Training draws from `counter` alone; the generators are seeded and saved for whatever else may use them.
    torch.manual_seed(settings.seed * 1_000_003 + ranks.rank)
    resolved = resolve(config.precision, device)
    if resolved == "fp8":
        fp8.check(device)
        fp8.convert(recipe.blocks, config.recipe)
    return Training(
        config=config,
        device=device,
        precision=resolved,
        ranks=ranks,
        data=source,
        recipe=recipe,
        blocks=Blocks(
            recipe.blocks,
            device,
            compiled=settings.compile == "blocks",
            recomputed=settings.activation_checkpointing,
        ),
        flat=flat,
        exchange=Exchange(flat, ranks),
        update=optim.build(settings.optimizer, flat),
        average=optim.Average(flat, settings.optimizer.ema) if settings.optimizer.ema > 0 else None,
        scaler=LossScaler(resolved, device, settings.loss_scale_growth_steps),
        cursor=Cursor(seed=settings.seed),
        micro_batch=math.ceil(settings.batch_size / ranks.world),
        graph=_graph(config, device, ranks.world, source),
        clock=Clock(device),
        energy=Energy(device),
    )


def _graph(config: TrainerConfig, device: torch.device, world: int, source: Source) -> StepGraph | None:
    if config.config.cuda_graph == "off":
        return None
    reason = reason_against(config.config, device, world, source)
    if reason is not None:
        log.warning("cudaGraph: steps run kernel by kernel, since %s", reason)
        return None
    return StepGraph(device, config.config.batch_size)


def rows_of_epoch(net: nn.Module, rows: int, batch: int) -> int:
    """A network that normalises over the batch leaves out an epoch's last, smaller one, whose statistics are other."""
    normalises = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
    return rows // batch * batch if normalises and rows >= batch else rows


def check_metrics(config: TrainerConfig, recipe: Recipe) -> None:
    """Raises: BadConfig where the recipe does not measure what the stop rule looks at."""
    for name, rule in (("target", config.stop.target), ("patience", config.stop.patience)):
        if rule is not None and rule.metric not in recipe.metrics:
            raise BadConfig(f"stop.{name}.metric: expected one of {', '.join(recipe.metrics)}, got {rule.metric!r}")


def better(value: float, other: float | None, mode: str) -> bool:
    """Whether `value` is better than `other`; than none or no number any number is."""
    if other is None or math.isnan(other):
        return not math.isnan(value)
    return value > other if mode == "max" else value < other


def share_buffers(training: Training) -> None:
    """Rank 0's buffers everywhere: each rank's come from its own share of the data. All ranks call it."""
    averages = training.average.buffers.values() if training.average is not None else ()
    _share([*buffers(training.net).values(), *averages], training.ranks)


def share_start(training: Training) -> None:
    """Rank 0's weights and buffers everywhere, and no average of others. All ranks call it."""
    _share([training.flat.parameters, *buffers(training.net).values()], training.ranks)
    if training.average is not None:
        training.average.restart()


def _share(tensors: list[torch.Tensor], ranks: Ranks) -> None:
    """Rank 0's values in `tensors` on every rank."""
    if ranks.world == 1 or not tensors:
        return
    mine = b"".join(t.cpu().contiguous().numpy().tobytes() for t in tensors) if ranks.rank == 0 else None
    shared, at = bytearray(ranks.from_first(mine) or b""), 0
    for t in tensors:
        t.copy_(torch.frombuffer(shared, dtype=t.dtype, count=t.numel(), offset=at).view(t.shape))
        at += t.numel() * t.element_size()
