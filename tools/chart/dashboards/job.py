"""One job: does it get on, how fast, what does it cost, which of its GPUs holds it up. Pure data.

The job is chosen by project and name; series of nodes know it by its uid alone, so that `run` lists the uids that had
that name in the time shown. Totals are a job's counters as they stood last: they are those of its whole life, whatever
the time shown, as long as it was there for a part of it.
"""

from __future__ import annotations

from .cluster import CLUSTER
from .model import (
    CURRENCY,
    NOT_REPORTED,
    NOTHING,
    Annotation,
    Column,
    Dashboard,
    Query,
    Row,
    Variable,
    bars,
    series,
    stat,
    table,
)
from .queries import GPU, RANGE, eq, increase, latest, memory_peak, most_over, of, priced, rate, sm_activity, total

THIS = 'job_uid=~"$run"'
# A trainer's job is its pod's label, its project is known: another project's pods are left out.
ITS_TRAINER = THIS + ', project="$project"'
WORKER = ("cluster", "node", "gpu", "attempt", "worker")
NAME = "worker {{worker}} on {{node}}/{{gpu}}"


def _sum(metric: str, *matchers: str, own: tuple[str, ...] = ()) -> str:
    return f"sum({latest(metric, THIS, *matchers, own=own)})"


_ALLOCATED = _sum("stoker_job_gpu_allocated_seconds_total")
_GPU_HOURS_EACH = f"{total(GPU, latest('stoker_job_gpu_allocated_seconds_total', THIS))} / 3600"
_JOULES = _sum("stoker_job_gpu_energy_joules_total", own=("method",))
_ENERGY_W = f"sum({rate('stoker_job_gpu_energy_joules_total', THIS)})"
_SAMPLES = f"sum({rate('stoker_train_samples_total', ITS_TRAINER)})"
_PHASES = "stoker_train_phase_seconds_total"
_TRAINING_S = f"sum({rate(_PHASES, ITS_TRAINER, eq('phase', 'train'))})"
_WAITING_S = f"sum({rate('stoker_train_data_wait_seconds_total', ITS_TRAINER)})"
_OTHER = 'phase!="train"'
_HELD = rate("stoker_job_gpu_allocated_seconds_total", THIS)
_HELD_S = total(WORKER, increase("stoker_job_gpu_allocated_seconds_total", THIS))
_USED_J = total(WORKER, increase("stoker_job_gpu_energy_joules_total", THIS))
_JOBS = 'stoker_job_info{cluster=~"$cluster"'
_CHECKPOINT = f"time() - max({of('stoker_job_checkpoint_timestamp_seconds', THIS)})"

_NOW = (
    stat(
        "Phase",
        "Of a job that has a place, or left it up to 15 minutes ago.",
        "none",
        Query(f"max by (phase) ({of('stoker_job_info', THIS)})", "{{phase}}"),
        by_name=True,
        base="blue",
        none=NOTHING,
    ),
    stat(
        "Attempts",
        "Attempts with workers in the time range. More than one: it was preempted, failed, or its node was lost.",
        "none",
        Query(f"count(max by (job_uid, attempt) (max_over_time({of('stoker_job_pod_info', THIS)}[{RANGE}])))"),
        steps=((2, "orange"), (4, "red")),
    ),
    stat(
        "Progress",
        "Steps done, of the total the job reports; of an ended job its last.",
        "percentunit",
        Query(most_over((), "stoker_train_progress_ratio", ITS_TRAINER)),
        base="blue",
        none=NOT_REPORTED,
    ),
    stat(
        "Time left",
        "At the current speed.",
        "s",
        Query(f"max({of('stoker_train_eta_seconds', ITS_TRAINER)})"),
        base="blue",
        none=NOT_REPORTED,
    ),
    stat(
        "Last step",
        "A job whose step does not change is stalled, whatever its GPU utilization.",
        "dateTimeFromNow",
        Query(f"1000 * {most_over((), 'stoker_job_progress_timestamp_seconds', THIS)}"),
        base="blue",
        none=NOT_REPORTED,
    ),
    stat(
        "Stalled",
        "No progress for longer than its limit, at some time of those shown.",
        "none",
        Query(most_over((), "stoker_job_stalled", THIS)),
        states={0: ("no", "green"), 1: ("STALLED", "red")},
        none=NOT_REPORTED,
    ),
    stat(
        "Last checkpoint",
        "What came after it is lost if the job ends now.",
        "dateTimeFromNow",
        Query(f"1000 * {most_over((), 'stoker_job_checkpoint_timestamp_seconds', THIS)}"),
        base="blue",
        none="no checkpoint",
    ),
    stat(
        "Failures",
        "Failed attempts since it was submitted or retried. Preemptions do not count.",
        "none",
        Query(most_over((), "stoker_job_failures", THIS)),
        steps=((1, "orange"), (3, "red")),
        none=NOT_REPORTED,
    ),
    stat(
        "GPU-hours",
        "Held by the job, over all attempts.",
        "short",
        Query(f"{_ALLOCATED} / 3600"),
        decimals=2,
        base="blue",
    ),
    stat(
        "Idle",
        "Share of its GPU-hours without activity, or under a tenth of the SMs.",
        "percentunit",
        Query(f"{_sum('stoker_job_gpu_idle_seconds_total', own=('class',))} / {_ALLOCATED}"),
        decimals=1,
        steps=((0.1, "orange"), (0.3, "red")),
    ),
    stat(
        "SM activity",
        "Mean over all its GPU-hours (Hopper and newer).",
        "percentunit",
        Query(
            sm_activity(
                (),
                latest("stoker_job_gpu_sm_active_seconds_total", THIS),
                latest("stoker_job_gpu_allocated_seconds_total", THIS),
            )
        ),
        decimals=1,
        base="red",
        steps=((0.1, "orange"), (0.3, "green")),
        none=NOT_REPORTED,
    ),
    stat(
        "Energy",
        "Of its GPUs, over all attempts.",
        "joule",
        Query(_JOULES),
        decimals=2,
        base="blue",
        none=NOT_REPORTED,
    ),
    stat(
        "Energy unobserved",
        "Part of its energy: used between polls too far apart to say how, while the job alone held the GPU.",
        "joule",
        Query(_sum("stoker_job_gpu_energy_joules_total", eq("method", "exclusive_unobserved"))),
        decimals=2,
        base="blue",
        none=NOT_REPORTED,
    ),
    stat(
        "Cost",
        "GPU-hours × the price of the model.",
        CURRENCY,
        Query(f"sum({priced(_GPU_HOURS_EACH)})"),
        decimals=2,
        base="blue",
        none="no price",
    ),
    stat(
        "Samples / joule",
        "Samples in the time range, divided by the joules of its GPUs in it.",
        "short",
        Query(
            f"sum({increase('stoker_train_samples_total', ITS_TRAINER)})"
            f" / (sum({increase('stoker_job_gpu_energy_joules_total', THIS)}) > 0)"
        ),
        decimals=3,
        base="blue",
        none=NOT_REPORTED,
    ),
    stat(
        "Memory peak",
        "Of its fullest GPU, share of the total.",
        "percentunit",
        Query(memory_peak((), THIS)),
        decimals=0,
        base="orange",
        steps=((0.25, "green"), (0.97, "orange")),
        none=NOT_REPORTED,
    ),
)

_TRAINING = (
    series("Samples per second", "Of all ranks.", "short", Query(_SAMPLES, "samples/s"), none=NOT_REPORTED),
    series(
        "Loss",
        "Of the latest step read, by attempt.",
        "short",
        Query(f"max by (attempt) ({of('stoker_train_loss', ITS_TRAINER)})", "attempt {{attempt}}"),
        low=None,
        none=NOT_REPORTED,
    ),
    series(
        "Samples per joule",
        "Falls when GPUs wait, or run above their most efficient clock.",
        "short",
        Query(f"{_SAMPLES} / ({_ENERGY_W} > 0)", "samples/J"),
        none=NOT_REPORTED,
    ),
    series(
        "Step time",
        "p50, p90 and p99.",
        "s",
        *(
            Query(
                f"histogram_quantile({q}, sum by (le) ({rate('stoker_train_step_seconds_bucket', ITS_TRAINER)}))",
                f"p{q * 100:.0f}",
            )
            for q in (0.5, 0.9, 0.99)
        ),
        none=NOT_REPORTED,
    ),
    series(
        "Time by phase",
        "Rank 0's wall time by phase: training, waiting for data, evaluation, checkpoints.",
        "percentunit",
        Query(f"{_TRAINING_S} - ({_WAITING_S} or vector(0))", "train"),
        Query(_WAITING_S, "waiting for data"),
        Query(f"sum by (phase) ({rate(_PHASES, ITS_TRAINER, _OTHER)})", "{{phase}}"),
        stack=True,
        none=NOT_REPORTED,
    ),
    series(
        "Step and checkpointed step",
        "A step that falls back: work lost with an attempt.",
        "short",
        Query(f"max({of('stoker_job_step', THIS)})", "step"),
        Query(f"max({of('stoker_train_checkpoint_last_step', ITS_TRAINER)})", "in the checkpoint"),
        none=NOT_REPORTED,
    ),
    series(
        "Checkpoint age",
        "And the configured interval.",
        "s",
        Query(_CHECKPOINT, "age"),
        Query(f"max({of('stoker_job_checkpoint_every_seconds', THIS)})", "asked for every", dashed=True),
        none="no checkpoint",
    ),
    series(
        "Trouble",
        "Steps skipped because of a non-finite gradient, and micro-batches halved because of memory, per minute.",
        "short",
        Query(f"60 * sum by (reason) ({rate('stoker_train_steps_skipped_total', ITS_TRAINER)})", "skipped: {{reason}}"),
        Query(f"60 * sum({rate('stoker_train_oom_total', ITS_TRAINER)})", "out of memory"),
        none=NOT_REPORTED,
    ),
    series(
        "Workers and attempts",
        "Running workers. A gap is time without GPUs.",
        "short",
        Query(
            f"count by (attempt) (max by (attempt, worker) ({of('stoker_job_pod_info', THIS)}))", "attempt {{attempt}}"
        ),
        stack=True,
    ),
)

_GPUS = (
    series(
        "SM activity by worker",
        "Hopper and newer. One below the others is a straggler that the others wait for.",
        "percentunit",
        Query(sm_activity(WORKER, rate("stoker_job_gpu_sm_active_seconds_total", THIS), _HELD), NAME),
        high=1,
        width=12,
        none=NOT_REPORTED,
    ),
    series(
        "Busy by worker",
        "Duty cycle; includes kernels that only wait.",
        "percentunit",
        Query(f"{total(WORKER, rate('stoker_job_gpu_busy_seconds_total', THIS))} / ({total(WORKER, _HELD)} > 0)", NAME),
        high=1,
        width=12,
    ),
    series(
        "Idle, by class",
        "Allocated and unused: no process, a process but no kernel, SM activity under a tenth; and not observed.",
        "short",
        Query(f"sum by (class) ({rate('stoker_job_gpu_idle_seconds_total', THIS)})", "{{class}}"),
        Query(f"sum({rate('stoker_job_gpu_unobserved_seconds_total', THIS)})", "not observed"),
        stack=True,
    ),
    series(
        "Throttled, by reason",
        "GPUs throttled while this job held them. Reasons may hold at once; sw_power_cap is how a busy GPU runs.",
        "short",
        Query(f"sum by (reason) ({rate('stoker_job_gpu_throttled_seconds_total', THIS)})", "{{reason}}"),
    ),
    series(
        "Power",
        "Of its GPUs, or its shares of them.",
        "watt",
        Query(_ENERGY_W, "power"),
        none=NOT_REPORTED,
    ),
    bars(
        "Memory peak by GPU",
        "Peak use, of the total. Below a quarter: the batch could be larger, or the GPU smaller.",
        "percentunit",
        Query(memory_peak((*GPU, "worker"), THIS), NAME),
        high=1,
        base="orange",
        steps=((0.25, "green"), (0.97, "orange")),
        width=12,
        none=NOT_REPORTED,
    ),
    table(
        "GPUs used",
        "By worker and attempt, in the time range.",
        {"node": "Node", "gpu": "GPU", "attempt": "Attempt", "worker": "Worker"},
        Column("GPU-hours", f"{_HELD_S} / 3600", decimals=3),
        Column(
            "SM activity",
            f"{total(WORKER, increase('stoker_job_gpu_sm_active_seconds_total', THIS))} / {_HELD_S}",
            "percentunit",
            base="red",
            steps=((0.1, "orange"), (0.3, "green")),
            look="gauge",
        ),
        Column(
            "Energy",
            f"{_USED_J} / 3.6e6",
            "kwatth",
            decimals=3,
        ),
        sort="GPU-hours",
        width=12,
    ),
)

DASHBOARD = Dashboard(
    "stoker-job",
    "Stoker / Job",
    "Progress, speed, cost, and which GPU is the slowest.",
    (
        CLUSTER,
        Variable("project", "Project", _JOBS + "}", "project", every=False, multi=False),
        Variable(
            "job",
            "Job",
            _JOBS + ', project="$project"}',
            "job_name",
            every=False,
            multi=False,
        ),
        Variable(
            "run",
            "Run",
            _JOBS + ', project="$project", job_name="$job"}',
            "job_uid",
            listed=True,
        ),
    ),
    (Row("Summary", _NOW), Row("Training", _TRAINING), Row("GPUs", _GPUS)),
    (
        Annotation(
            "New attempt",
            f"count by (attempt) ({of('stoker_job_pod_info', THIS)})"
            f" unless count by (attempt) ({of('stoker_job_pod_info', THIS)} offset 2m)",
            "attempt {{attempt}}",
            "orange",
        ),
        Annotation("Stalled", f"max({of('stoker_job_stalled', THIS)}) > 0", "no progress", "red"),
    ),
)
