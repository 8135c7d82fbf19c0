"""The parts of a TrainingJob's spec: what runs, on which GPUs, with which data, how long, and what follows a failure.

Called by `job`, which puts them together; rules that span parts stand there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .code import CodeDigest
from .data import stays_within
from .fields import (
    DISTINCT,
    ComputeCapability,
    DnsLabel,
    Duration,
    GpuResource,
    ImageName,
    JobName,
    LabelKey,
    LongDuration,
    ObjectName,
    Quantity,
    Requirements,
    SecretKey,
)
from .meta import SpecModel
from .names import GPU_RESOURCE, SECRET_VALUE
from .outcome import POLICIES, Category, ExitZero
from .quantity import parse_duration
from .recipes import RECIPES, resolve

MAX_WORKERS = 4096
MAX_STEPS = 1_000_000_000_000
MAX_SECRETS = 16
"""Of a job: each needs a check of its own in an admission policy, whose cost is bounded."""


class Precision(StrEnum):
    AUTO = "auto"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


class GpuRequest(SpecModel):
    """Which GPUs will do. Empty: any."""

    models: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(default=(), max_length=16)
    """Model names as `stoker get nodes` shows them; one of them must be part of the GPU's name, case ignored."""
    min_memory: Quantity | None = None
    """Memory of each GPU."""
    min_compute_capability: ComputeCapability | None = None
    """What each GPU can do, as NVIDIA numbers it: 8.0 for A100, 9.0 for H100. A GPU whose is not known won't do."""
    max_power: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    """The most watts that each GPU may draw: its enforced limit, as the node's exporter reads it. A GPU whose limit is
    not known won't do."""
    resource: GpuResource = GPU_RESOURCE
    """What the nodes' device plug-in calls them: whole GPUs, MIG slices (nvidia.com/mig-1g.10gb) or GPUs that pods
    share (nvidia.com/gpu.shared). Of slices and shared GPUs a job has one."""


PARTS_SAYS = (
    "gpu.resource names parts of GPUs, of which a job has one: with several, its processes could get parts of the same "
    "GPU; set workers and gpusPerWorker to 1"
)
ELASTIC_SAYS = "workers must be from elastic.min to elastic.max"


class Elastic(SpecModel):
    """How many workers will do. The job starts with fewer than `workers` where that fits now; each attempt has a world
    size of its own."""

    min: int = Field(ge=1, le=MAX_WORKERS)
    """It never runs with fewer workers."""
    max: int = Field(ge=1, le=MAX_WORKERS)
    """Nor with more."""


class JobTopology(SpecModel):
    """How close together the workers are to be. Each is a level of the cluster's topology: the key of a node label."""

    required: LabelKey | None = None
    """All workers run on nodes with the same value, or the job waits."""
    preferred: LabelKey | None = None
    """They do where there is room; else in one domain of the next level outside it, else in as few as can be."""


INIT_FROM_SAYS = "give either job (another job of this project) or path"
INIT_PATH_SAYS = "must be an absolute path: what workers find there"
INIT_WEIGHTS_SAYS = "weights belongs to job; a path names the file itself (or an output folder, whose weights.pt it is)"


class Weights(StrEnum):
    FINAL = "final"
    BEST = "best"


class InitFrom(SpecModel):
    """The weights that a training begins with: another job's, or a file's. Read before its first step only; all else,
    the optimizer's state too, begins anew."""

    job: JobName | None = None
    """A job of this project that has ended."""
    weights: Weights = Weights.FINAL
    """Which of that job's: those of its end (weights.pt), or of its best evaluation (best.pt)."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A file with a state_dict, or the output folder of a training. On a cluster below the path of an entry of data."""
    partly: bool = False
    """Take what fits by name and shape, and list the rest in the log. Else all must fit."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.job is None) == (self.path is None):
            raise ValueError(INIT_FROM_SAYS)
        if self.path is not None and self.weights is not Weights.FINAL:
            raise ValueError(INIT_WEIGHTS_SAYS)
        if self.path is not None and not self.path.startswith("/"):
            raise ValueError(INIT_PATH_SAYS)
        return self


MAX_LEFT_OUT = 32
MAX_LEFT_OUT_PATH = 256
LEFT_OUT_SAYS = "leftOut belongs to code: what of the folder was not sent"


class LeftOut(SpecModel):
    """A file or folder of the user's that was not sent with the code. Only named: `stoker why` knows it again."""

    path: str = Field(min_length=1, max_length=MAX_LEFT_OUT_PATH)
    """Within the folder; of a folder with a slash at its end."""
    by: str = Field(min_length=1, max_length=MAX_LEFT_OUT_PATH)
    """The rule: its file and line, .gitignore:1."""


INIT_FROM_RECIPE_SAYS = "initFrom belongs to recipe; a command reads checkpoint.from, or files of data"
WITHIN_CODE_SAYS = "with code, workingDir must be a path within it, without '..'"
PYTHON_PATH_SAYS = "pythonPath names folders within the code: paths without a leading '/', '..' and ':'"
PYTHON_PATH_NEEDS_SAYS = "pythonPath goes with code"
REQUIREMENTS_NEED_SAYS = "requirements names a file of the code, which this job has not"


class Trainer(SpecModel):
    """What runs: a recipe of ours with its config, or a command of the user's."""

    recipe: str | None = Field(default=None, max_length=63)
    """The name of a recipe of ours: bert, gpt, image-classification, lstm."""
    config: dict[str, JsonValue] = {}
    """The recipe's settings; docs/trainer.md has them. What is left out takes the recipe's default."""
    init_from: InitFrom | None = None
    """The weights to begin with; with a recipe only. Absent: fresh ones."""
    image: ImageName | None = None
    """The container image to run the command in; on a cluster only. Absent: the runtime's."""
    command: tuple[Annotated[str, Field(max_length=131_072)], ...] | None = Field(default=None, max_length=1024)
    """A program and its arguments, run once per worker with torchrun's environment; no shell in between."""
    code: CodeDigest | None = None
    """The folder of code that `stoker run` sent: each worker has a copy of its own, and the command starts there."""
    left_out: tuple[LeftOut, ...] = Field(default=(), max_length=MAX_LEFT_OUT)
    """What of that folder was not sent, the largest first."""
    working_dir: str | None = Field(default=None, max_length=4096)
    """Where the command starts; with code, a folder within it. Absent: the code's folder, else the image's own (on one
    machine a folder of the worker's)."""
    python_path: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], *DISTINCT] | None = Field(
        default=None, max_length=32
    )
    """Folders within the code that Python looks into first, before packages that are installed: src, say, or '.'."""
    requirements: Requirements | None = None
    """A list of packages within the code, uv.lock or a requirements.txt: installed before the command starts, once for
    all jobs of the project that find the same Python. Absent: what the image has."""

    @field_validator("python_path")
    @classmethod
    def _importable(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if any(":" in path or not stays_within(path) for path in value or ()):
            raise ValueError(PYTHON_PATH_SAYS)
        return value

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.recipe is None) == (self.command is None):
            raise ValueError("give either recipe (with config) or command (with workingDir)")
        if self.recipe is not None:
            if self.working_dir is not None or self.image is not None or self.code is not None:
                raise ValueError("workingDir, image and code belong to command; a recipe has its own")
            if self.recipe not in RECIPES:
                raise ValueError(f"there is no recipe {self.recipe!r}; there is: {', '.join(sorted(RECIPES))}")
            _check_config(self.recipe, self.config)
        elif self.config:
            raise ValueError("config belongs to recipe; give a command its settings as arguments or env")
        elif self.init_from is not None:
            raise ValueError(INIT_FROM_RECIPE_SAYS)
        elif not self.command or not self.command[0]:
            raise ValueError("command must name a program")
        elif self.code is not None and self.working_dir is not None and not stays_within(self.working_dir):
            raise ValueError(WITHIN_CODE_SAYS)
        if self.left_out and self.code is None:
            raise ValueError(LEFT_OUT_SAYS)
        if self.python_path and self.code is None:
            raise ValueError(PYTHON_PATH_NEEDS_SAYS)
        if self.requirements is not None and self.code is None:
            raise ValueError(REQUIREMENTS_NEED_SAYS)
        return self


class SecretRef(SpecModel):
    """A value of a secret of the job's project (`stoker secret`)."""

    secret: DnsLabel
    """The secret's name."""
    key: SecretKey = SECRET_VALUE
    """Which of its values."""


SECRET_TWICE_SAYS = "a variable stands in env and in secretEnv; leave it out of one of them"


class TargetMode(StrEnum):
    MAX = "max"
    MIN = "min"


EVALUATED = ("accuracy", "loss")
"""What recipes measure."""
ABOVE_0_SAYS = "of accuracy and loss the value must be greater than 0"
MODE_SAYS = "only accuracy and loss have a mode by themselves; give mode: max or mode: min"
SHARE_SAYS = "accuracy is a share: at most 1 (97 % is 0.97)"


class Target(SpecModel):
    """Stop as soon as a metric reaches this."""

    metric: str = Field(default="accuracy", min_length=1, max_length=128)
    """With a recipe what the evaluation measures on the test samples: accuracy or loss. With a command a metric that it
    reports."""
    value: float = Field(ge=-1_000_000, le=1_000_000)
    """Reached when the metric is at least this (mode max) or at most (min)."""
    mode: TargetMode | None = None
    """Absent: max for accuracy, min for loss; others need it."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.metric == "accuracy" and self.value > 1:
            raise ValueError(SHARE_SAYS)
        if self.metric in EVALUATED and self.value <= 0:
            raise ValueError(ABOVE_0_SAYS)
        if self.metric not in EVALUATED and self.mode is None:
            raise ValueError(MODE_SAYS)
        return self

    @property
    def best(self) -> TargetMode:
        """Which way is better."""
        return self.mode or (TargetMode.MAX if self.metric == "accuracy" else TargetMode.MIN)


ONE_WORKER_SAYS = "stop.target of a command works with one worker; with several the program itself must end"
EVALUATED_SAYS = "stop.target of a recipe: metric is accuracy or loss"


class Patience(SpecModel):
    """Stop, as Succeeded, when evaluations no longer improve."""

    evaluations: int = Field(ge=1, le=1_000_000)
    """So many in a row without a better value than the best before."""
    metric: Literal["accuracy", "loss"] = "loss"
    """What the evaluation measures, on the test samples."""
    mode: TargetMode | None = None
    """Absent: max for accuracy, min for loss."""


EXIT_ZERO_SAYS = "stop.exitZeroAfterSignal: Stopped is for a command; exit 0 of a recipe always means done"


class Stop(SpecModel):
    """When the job is over; whatever comes first. Empty: when the program ends."""

    max_duration: Duration | None = None
    """Running time, all attempts added up; waiting does not count. Then the job is stopped, saved and Failed."""
    max_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Optimizer steps; with a recipe only."""
    target: Target | None = None
    """Good enough: stop as soon as an evaluation says so. A command (with one worker) as soon as it reports so: it is
    asked to end (SIGTERM, then the grace), and the job is Succeeded whatever it exits with."""
    patience: Patience | None = None
    """No longer better: stop as soon as evaluations say so; with a recipe only."""
    exit_zero_after_signal: ExitZero = ExitZero.SUCCEEDED
    """What exit 0 of the command means after SIGTERM. Succeeded: the job is done. Stopped: the same as exit 75, so the
    job is suspended, cancelled or queued again; for scripts that save and exit 0. With a command only."""


class CheckpointSource(SpecModel):
    """Another job's checkpoint, to go on from. A recipe takes its weights, optimizer, position in the data and record,
    and asks for the same settings; `epochs`, `steps` and `stop` may be other ones. A command is given the folder
    (STOKER_CHECKPOINT_FROM)."""

    job: JobName
    """A job of this project that has ended."""
    step: int | None = Field(default=None, ge=0, le=MAX_STEPS)
    """Which of its checkpoints. Absent: the newest."""


_MOST_GRACE_S = 3600.0
FROM_SAYS = "checkpoint.from brings its own weights: leave trainer.initFrom out, or take only weights by it"


class CheckpointPolicy(SpecModel):
    """How often the job saves, what is kept, how long a save at a stop may take, and what it goes on from."""

    every: Duration = "60s"
    """Time between checkpoints: the most work that a lost node can cost."""
    keep: int = Field(default=2, ge=1, le=100)
    """How many of the newest checkpoints stay."""
    grace: Duration = "30s"
    """Time a worker has from the request to stop until it is killed. What is longer counts as an hour."""
    claim: ObjectName | None = None
    """The PersistentVolumeClaim that keeps checkpoints and output; on a cluster only. Absent: the runtime's way."""
    source: CheckpointSource | None = Field(default=None, alias="from")
    """What the job goes on from while it has no checkpoint of its own. Absent: it begins at step 0."""

    @property
    def grace_s(self) -> float:
        """Bounded, for it is its owner's choice how long others wait for what their queue is guaranteed, and how long
        pods of a deleted job go on beside what their queue may hold."""
        return min(parse_duration(self.grace), _MOST_GRACE_S)


class RetryRule(SpecModel):
    """At most `limit` retries for ends of these categories, the first after `backoff`.

    The back-off doubles up to 10 minutes while attempts come to nothing: under a minute, and no further checkpoint.
    """

    categories: tuple[Category, ...] = Field(min_length=1, max_length=len(Category))
    """The categories of failure the rule is for."""
    limit: int = Field(ge=0, le=100)
    """The most retries for each of them."""
    backoff: Duration | None = None
    """The wait before the first retry. Absent: 1 to 30 seconds, by category."""

    @field_validator("categories")
    @classmethod
    def _raisable(cls, value: tuple[Category, ...]) -> tuple[Category, ...]:
        for category in value:
            if not POLICIES[category].raisable:
                raise ValueError(f"{category} can't be given retries: {POLICIES[category].says}")
        return value


class Retry(SpecModel):
    """How often a failed job is tried again, by category of failure."""

    rules: tuple[RetryRule, ...] = Field(default=(), max_length=16)
    """The first rule that names a category holds; categories no rule names keep their defaults."""


class OnFailure(SpecModel):
    """What happens to a worker whose command failed."""

    hold: Duration | None = None
    """Its container and GPUs are kept this long before the failure counts, for a look inside (`stoker exec`). A retry
    waits until then; cancelling, suspending or deleting the job ends it at once."""


class StallPolicy(SpecModel):
    """When a running job counts as stalled."""

    after: Duration | None = None
    """No change of `step` in the progress for so long: the stacks of all workers are saved, then the attempt ends as
    Stalled. It counts from the first progress with a step on. Absent: a recipe's own watchdog (10m); for a command no
    limit."""


class IdleAction(StrEnum):
    NOTIFY = "Notify"
    SUSPEND = "Suspend"
    NONE = "None"


class IdlePolicy(SpecModel):
    """What follows if all GPUs of the running job are idle."""

    after: LongDuration | None = None
    """Idle without a break for so long. Absent: the server's (30m)."""
    action: IdleAction | None = None
    """Notify: an event on the job. Suspend: that, and the job is suspended. None: nothing. Absent: the server's
    (Notify)."""


def _check_config(recipe: str, config: dict[str, JsonValue]) -> None:
    """Raise `config`'s faults with their own pointers (trainer.config.…), not as one opaque sentence."""
    try:
        resolve(recipe, config)
    except ValidationError as error:
        raise ValidationError.from_exception_data(
            "Trainer",
            [
                InitErrorDetails(
                    type=PydanticCustomError("config", "{reason}", {"reason": fault["msg"]}),
                    loc=("config", *fault["loc"]),
                    input=fault["input"],
                )
                for fault in error.errors()
            ],
        ) from None
