"""What exporters, trainers, operators and the api of the sample cluster show at one moment. See `sample_cluster`."""

from __future__ import annotations

from dataclasses import dataclass

from .sample_cluster import GIB, JOBS, LOST, NODES, STEP_S, Book, Job, Model, Run, hash_of, wave

REASONS = ("sw_power_cap", "hw_power_brake", "sw_thermal", "hw_thermal", "sync_boost")
CLASSES = ("no_process", "no_activity", "low_activity")
[TINY] = [job for job in JOBS if job.name == "tiny-eval"]
"""Its third worker has nearly all memory of a MIG device, and so a small part of its GPU's; it alone reports SMs."""
WAITS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True)
class Hold:
    job: Job
    run: Run
    attempt: int
    worker: int
    sm: float
    busy: float


Held = dict[tuple[str, int], Hold]


def _pod(node: str, share: float) -> str:
    """Exporters are restarted in the middle: another pod, another series."""
    return f"exporter-{node[-4:]}-{'a' if share < 0.55 else 'b'}"


def workers(book: Book, at: float, share: float, start: float, end: float) -> Held:
    """What jobs have of GPUs, and what trainers report. Answers: who holds what."""
    held: Held = {}
    for job in JOBS:
        for attempt, run in enumerate(job.runs, 1):
            if not run.begin <= share <= run.end:
                if run.end < share <= run.end + 300 / (end - start):  # shown for 5 minutes more
                    _job_counters(book, at, share, job, run, attempt, held=False)
                continue
            for worker, where in enumerate(run.gpus):
                sm = 0.0 if job.idle else max(0.02, job.sm + wave(at, hash_of(job.name) + worker, 0.06))
                sm *= 0.55 if worker == job.straggler else 1.0
                held[where] = Hold(job, run, attempt, worker, sm, 0.0 if job.idle else min(1.0, sm + 0.25))
            _job_counters(book, at, share, job, run, attempt, held=True, now=held)
            if not job.idle:
                _trainer(book, at, share, start, end, job, run, attempt)
    return held


def _job_counters(
    book: Book, at: float, share: float, job: Job, run: Run, attempt: int, *, held: bool, now: Held | None = None
) -> None:
    for worker, (node, gpu) in enumerate(run.gpus):
        model = NODES[node][1]
        labels = {
            "node": node, "gpu": gpu, "uuid": _uuid(node, gpu), "project": job.project, "job_uid": job.uid,
            "attempt": attempt, "worker": worker, "pod": _pod(node, share),
        }  # fmt: skip
        hold = (now or {}).get((node, gpu))
        step = STEP_S if held and hold else 0.0
        sm, busy = (hold.sm, hold.busy) if hold else (0.0, 0.0)
        name = "stoker_job_gpu_"
        book.add(at, f"{name}allocated_seconds_total", step, **labels)
        book.add(at, f"{name}unobserved_seconds_total", step if 0.55 < share < 0.56 else 0.0, **labels)
        book.add(at, f"{name}busy_seconds_total", step * busy, **labels)
        if model.tells_sm:
            book.add(at, f"{name}sm_active_seconds_total", step * sm, **labels)
            book.add(at, f"{name}tensor_active_seconds_total", step * sm * 0.5, **labels)
            book.add(at, f"{name}dram_active_seconds_total", step * sm * 0.4, **labels)
        for one in CLASSES:
            idle = step if one == job.idle else step * 0.02 if one == "no_activity" and not job.idle else 0.0
            book.add(at, f"{name}idle_seconds_total", idle, class_=one, **labels)
        for reason in REASONS:
            part = 0.3 if reason == "sw_power_cap" and sm > 0.75 else 0.0
            book.add(at, f"{name}throttled_seconds_total", step * part, reason=reason, **labels)
        watts = power(model, sm, at, gpu)
        book.add(at, f"{name}energy_joules_total", step * watts, method="exclusive", **labels)
        book.add(at, f"{name}energy_joules_total", step * watts / 1000, method="exclusive_unobserved", **labels)
        book.gauge(at, f"{name}memory_peak_bytes", job.memory * model.memory_gib * GIB, **labels)


def _trainer(book: Book, at: float, share: float, start: float, end: float, job: Job, run: Run, attempt: int) -> None:
    labels = {"project": job.project, "job_name": job.name, "job_uid": job.uid, "attempt": attempt, "recipe": "image"}
    name, done = "stoker_train_", share * 0.9 / 1.0
    rate = 220.0 * len(run.gpus) * (1 + wave(at, 3, 0.05))
    book.add(at, f"{name}samples_total", rate * STEP_S, **labels)
    book.add(at, f"{name}step_total", rate * STEP_S / 256, **labels)
    book.gauge(at, f"{name}loss", 0.4 + 2.5 * 2.718 ** (-4 * done) + wave(at * 5, 1, 0.04), **labels)
    book.gauge(at, f"{name}progress_ratio", done, **labels)
    book.gauge(at, f"{name}eta_seconds", (1 - done) * (end - start), **labels)
    book.gauge(at, f"{name}checkpoint_last_step", int(share * 20) * 1000, **labels)
    book.add(at, f"{name}oom_total", 0, **labels)
    book.add(at, f"{name}steps_skipped_total", 0.0, reason="overflow", **labels)
    book.add(at, f"{name}data_wait_seconds_total", STEP_S * (0.08 + wave(at, 5, 0.03)), **labels)
    for phase, part in (("train", 0.91), ("eval", 0.06), ("checkpoint", 0.03)):
        book.add(at, f"{name}phase_seconds_total", STEP_S * part, phase=phase, **labels)
    for le, part in ((0.025, 0.0), (0.05, 0.05), (0.1, 0.55), (0.25, 0.93), (0.5, 0.985), (1, 1.0), ("+Inf", 1.0)):
        book.add(at, f"{name}step_seconds_bucket", rate * STEP_S / 256 * part, le=le, **labels)


def power(model: Model, sm: float, at: float, gpu: int) -> float:
    return min(model.limit_w, model.idle_w + (model.limit_w - model.idle_w) * min(1, sm * 1.15) + wave(at, gpu, 9))


def _uuid(node: str, gpu: int) -> str:
    return f"GPU-{hash_of(node):08x}-0000-0000-0000-{gpu:012d}"


def hardware(book: Book, at: float, share: float, held: Held) -> None:
    """What the nodes' exporters report of GPUs and of themselves."""
    for node, (count, model) in NODES.items():
        pod, lost = _pod(node, share), 1 if node == LOST[0] and share > 0.75 else 0
        own = {"node": node, "pod": pod}
        book.gauge(at, "stoker_exporter_build_info", 1, version="0.1", **own)
        book.gauge(at, "stoker_exporter_gpus_expected", count, **own)
        book.gauge(at, "stoker_exporter_gpus_visible", count - lost, **own)
        book.gauge(at, "stoker_exporter_collect_success", 1 - lost, **own)
        book.gauge(at, "stoker_exporter_last_success_timestamp_seconds", at - 0.4 - 600 * lost, **own)
        book.gauge(at, "stoker_exporter_collect_seconds", 0.011 + 0.001 * count + wave(at, count, 0.002), **own)
        for gpu in range(count):
            _gpu(book, at, share, node, gpu, model, held.get((node, gpu)))


def _gpu(book: Book, at: float, share: float, node: str, gpu: int, model: Model, hold: Hold | None) -> None:
    labels = {"node": node, "gpu": gpu, "uuid": _uuid(node, gpu), "pod": _pod(node, share)}
    sm, busy = (hold.sm, hold.busy) if hold else (0.0, 0.0)
    lost, mig = (node, gpu) == LOST and share > 0.75, (node, gpu) == ("gpu-a-01", 2)
    name = "stoker_gpu_"
    account = "unobserved" if lost else "attributed" if hold else "unallocated"
    for one in ("attributed", "unallocated", "unobserved"):
        book.add(at, f"{name}account_seconds_total", STEP_S * (one == account), account=one, **labels)
    book.gauge(at, f"{name}up", 0 if lost else 1, **labels)
    if lost:
        return
    what = {
        "model": model.name, "driver": "580.82.07", "cuda": "13.0", "pci_bus_id": f"0000:{gpu:02x}:00.0",
        "compute_capability": "9.0" if model.tells_sm else "8.0", "mig": "on" if mig else "off", "simulated": "false",
        "serial": f"{hash_of(node) + gpu:013}", "vbios": "96.00.A5.00.01",
    }  # fmt: skip
    book.gauge(at, f"{name}info", 1, **what, **labels)
    ecc_off = (node, gpu) == ("gpu-h-01", 0)  # after the next reset
    for kind, modes in {"ecc": (1, not ecc_off), "mig": (mig, mig), "persistence": (1,)}.items():
        for when, mode in zip(("current", "pending"), modes, strict=False):
            book.gauge(at, f"{name}mode", int(mode), kind=kind, when=when, **labels)
    watts = power(model, sm, at, gpu)
    book.gauge(at, f"{name}busy_ratio", busy, **labels)
    book.add(at, f"{name}busy_seconds_total", STEP_S * busy, **labels)
    if model.tells_sm:
        for one, part in (("sm_active", 1.0), ("tensor_active", 0.5), ("dram_active", 0.4)):
            book.gauge(at, f"{name}{one}_ratio", sm * part, **labels)
            book.add(at, f"{name}{one}_seconds_total", STEP_S * sm * part, **labels)
        book.gauge(at, f"{name}sm_occupancy_ratio", sm * 0.45, **labels)
        book.gauge(at, f"{name}recovery_action", 1 if (node, gpu) == ("gpu-h-02", 1) and share > 0.6 else 0, **labels)
        book.gauge(at, f"{name}row_remap_pending", 0, **labels)
        is_worn = (node, gpu) == ("gpu-h-02", 1)
        for left, banks in (("max", 638), ("low", 2 * is_worn), ("none", int(is_worn))):
            book.gauge(at, f"{name}remap_banks", banks, left=left, **labels)
        book.gauge(at, f"{name}remapped_rows", 6 * is_worn, type="uncorrectable", **labels)
        book.add(at, f"{name}sram_errors_total", 0, type="uncorrected_secded", **labels)
        book.gauge(at, f"{name}sram_threshold_exceeded", 0, **labels)
        book.gauge(at, f"{name}mode", 1, kind="ecc", when="current", **labels)
        book.gauge(at, f"{name}fabric_state", 3, **labels)
        for direction in ("tx", "rx"):
            book.add(at, f"{name}nvlink_bytes_total", STEP_S * 9e10 * sm, direction=direction, **labels)
        book.add(at, f"{name}nvlink_errors_total", 0, kind="replay", **labels)
        book.gauge(at, f"{name}temperature_celsius", 42 + watts / 14, sensor="memory", **labels)
        book.gauge(at, f"{name}temperature_margin_celsius", 55 - watts / 16, **labels)
    used = hold.job.memory if hold else 0.0
    book.gauge(at, f"{name}memory_total_bytes", model.memory_gib * GIB, **labels)
    book.gauge(at, f"{name}memory_used_bytes", (0.004 + used) * model.memory_gib * GIB, **labels)
    book.gauge(at, f"{name}power_watts", watts, **labels)
    book.gauge(at, f"{name}power_limit_watts", model.limit_w, kind="enforced", **labels)
    book.add(at, f"{name}energy_joules_total", STEP_S * watts, **labels)
    book.gauge(at, f"{name}temperature_celsius", 30 + watts / 16, sensor="core", **labels)
    for domain, top in (("sm", 1.98e9), ("memory", 3.2e9)):
        held_down = 0.92 if sm > 0.75 and domain == "sm" else 1.0
        book.gauge(at, f"{name}clock_hertz", top * (held_down if hold else 0.18), domain=domain, **labels)
    for reason in REASONS:
        part = 0.3 if reason == "sw_power_cap" and sm > 0.75 else 0.04 if reason == "sw_thermal" and sm > 0.6 else 0.0
        book.add(at, f"{name}throttle_seconds_total", STEP_S * part, reason=reason, **labels)
        book.gauge(at, f"{name}throttle_active", float(part > 0), reason=reason, **labels)
    for direction in ("tx", "rx"):
        book.add(at, f"{name}pcie_bytes_total", STEP_S * 2.1e9 * sm, direction=direction, **labels)
        book.gauge(at, f"{name}pcie_bytes_per_second", 2.1e9 * sm, direction=direction, **labels)
    book.add(at, f"{name}pcie_replays_total", 0, **labels)
    for kind in ("corrected", "uncorrected"):
        book.add(at, f"{name}ecc_errors_total", 0, type=kind, scope="volatile", **labels)
    book.gauge(at, f"{name}processes", 1 if hold and not hold.job.idle else 0, **labels)
    book.gauge(at, f"{name}unowned_processes", 0, **labels)
    book.gauge(at, f"{name}unallocated_use", 1 if (node, gpu) == ("gpu-h-01", 7) and share > 0.8 else 0, **labels)
    if hold:
        book.gauge(
            at, f"{name}allocation_share_ratio", 1, pod_namespace=hold.job.project, pod_name=_worker_pod(hold),
            pod_uid=_pod_uid(hold), job_uid=hold.job.uid, attempt=hold.attempt, worker=hold.worker, method="exclusive",
            **labels,
        )  # fmt: skip
    idle_s = (share - hold.run.begin) * 10_000 if hold and hold.job.idle else 0.0
    book.gauge(at, f"{name}idle_seconds", idle_s, **labels)
    if (node, gpu) == ("gpu-h-02", 1) and share > 0.6:
        book.gauge(at, f"{name}xid_last_timestamp_seconds", at - (share - 0.6) * 10_000, xid=95, **labels)
        book.add(at, f"{name}xid_errors_total", 0, xid=95, **labels)
    if mig:
        for number in range(3):
            device = {**labels, "mig_uuid": f"MIG-{number}", "profile": "2g.10gb"}
            book.gauge(at, "stoker_mig_info", 1, slices=2, **device)
            book.gauge(at, "stoker_mig_memory_total_bytes", 10 * GIB, **device)
            book.gauge(at, "stoker_mig_memory_used_bytes", (1 + number) * GIB, **device)
        if share > TINY.runs[0].begin:
            slice_ = labels | {"uuid": "MIG-2", "project": TINY.project, "job_uid": TINY.uid, "attempt": 1, "worker": 2}
            book.gauge(at, "stoker_job_gpu_memory_peak_bytes", 9.5 * GIB, **slice_)
            book.add(at, "stoker_job_gpu_allocated_seconds_total", STEP_S * 2 / 7, **slice_)
            for what in ("sm_active", "busy"):
                book.add(at, f"stoker_job_gpu_{what}_seconds_total", STEP_S * 2 / 7 * 0.9, **slice_)


def _worker_pod(hold: Hold) -> str:
    return f"{hold.job.name}-{hold.attempt}-{hold.worker}"


def _pod_uid(hold: Hold) -> str:
    return f"{hash_of(_worker_pod(hold)):08x}-0000-4000-8000-000000000000"


def control_plane(book: Book, at: float, share: float, start: float, end: float) -> None:
    """What operators and api report. The second operator leads from the middle on; what operators count is not scraped
    for some minutes before."""
    leader = "operator-0" if share < 0.5 else "operator-1"
    _jobs(book, at, share, start, end, leader)
    _api(book, at, share)
    if 0.25 < share < 0.4:
        return
    for operator in ("operator-0", "operator-1"):
        own = {"instance": operator}
        book.gauge(at, "stoker_operator_leader", float(operator == leader), **own)
        book.gauge(at, "stoker_operator_queue_depth", max(0.0, wave(at, 2, 3)) * (operator == leader), **own)
        book.gauge(at, "stoker_operator_unreadable_jobs", 0, **own)
        book.add(at, "stoker_operator_reconcile_errors_total", 0, **own)
        book.add(at, "stoker_operator_api_refusals_total", 0, **own)
        book.add(at, "stoker_operator_starts_total", 0.05 * (operator == leader), **own)
        for kind, count in (("Pod", 60), ("TrainingJob", 40), ("Node", 3)):
            book.gauge(at, "stoker_operator_cached_objects", count, kind=kind, **own)
            book.gauge(at, "stoker_operator_watch_stale_seconds", 20 + wave(at, count, 18), kind=kind, **own)
        for verb, rate in (("get", 0.4), ("create", 0.2), ("patch", 1.1), ("watch", 0.02)):
            book.add(at, "stoker_operator_api_requests_total", STEP_S * rate, verb=verb, kind="Pod", **own)
        for code, rate in (("Placed", 0.02), ("WaitingForQuota", 0.3), ("NoNodeFits", 0.1)):
            book.add(at, "stoker_operator_decisions_total", STEP_S * rate * (operator == leader), code=code, **own)
        for what, middle in (("pass", 0.004), ("reconcile", 0.02)):
            for le, part in ((middle / 2, 0.1), (middle, 0.7), (middle * 3, 0.97), (middle * 10, 1), ("+Inf", 1)):
                book.add(
                    at, f"stoker_operator_{what}_seconds_bucket", STEP_S * part * (operator == leader), le=le, **own
                )
    _queues(book, at, share, start, end, leader)


def _jobs(book: Book, at: float, share: float, start: float, end: float, leader: str) -> None:
    for job in JOBS:
        labels = {"project": job.project, "job_name": job.name, "job_uid": job.uid}
        more = {"queue": job.queue, "user": job.user}
        if not job.runs[0].begin <= share <= job.runs[-1].end + 900 / (end - start):
            continue
        running = [(number, run) for number, run in enumerate(job.runs, 1) if run.begin <= share <= run.end]
        ended = "Failed" if job.ending[0] == "OutOfMemory" else "Queued"
        book.gauge(at, "stoker_job_info", 1, phase="Running" if running else ended, instance=leader, **labels, **more)
        book.gauge(at, "stoker_job_failures", 1 if ended == "Failed" and not running else 0, instance=leader, **labels)
        for attempt, run in running:
            for worker, where in enumerate(run.gpus):
                hold = Hold(job, run, attempt, worker, 0, 0)
                book.gauge(
                    at, "stoker_job_pod_info", 1, pod_uid=_pod_uid(hold), attempt=attempt, worker=worker, node=where[0],
                    instance=leader, **labels, **more,
                )  # fmt: skip
            if not job.idle:
                labelled = {**labels, "queue": job.queue}
                book.gauge(at, "stoker_job_progress_timestamp_seconds", at - 4, **labelled)
                book.gauge(at, "stoker_job_step", int(share * 20_000), **labelled)
                book.gauge(at, "stoker_job_checkpoint_timestamp_seconds", at - at % 1200, **labelled)
                book.gauge(at, "stoker_job_checkpoint_every_seconds", 1200, **labelled)
            book.gauge(at, "stoker_job_stalled", 0, queue=job.queue, **labels)


def _queues(book: Book, at: float, share: float, start: float, end: float, leader: str) -> None:
    own = {"instance": leader}
    for queue, limit in (("research", 8), ("production", 8), ("default", 4)):
        now = [job for job in JOBS if job.queue == queue for run in job.runs if run.begin <= share <= run.end]
        gpus = sum(
            len(run.gpus) for job in JOBS if job.queue == queue for run in job.runs if run.begin <= share <= run.end
        )
        waiting = max(0, round(3 + wave(at / 6, hash_of(queue), 3)))
        for phase, count in (("Running", len(now)), ("Queued", waiting), ("Failed", 1 if share > 0.7 else 0)):
            book.gauge(at, "stoker_queue_jobs", count, queue=queue, phase=phase, instance="api-0")
        book.gauge(at, "stoker_queue_waiting_jobs", waiting, queue=queue, reason="WaitingForQuota", **own)
        lent = {"guarantee": limit // 2, "borrowed": max(0, gpus - limit // 2)}
        for state, value in {"allocated": gpus, "requested": waiting * 2, "limit": limit, **lent}.items():
            book.gauge(at, "stoker_queue_gpus", value, queue=queue, parent="", state=state, **own)
        for resource, held in (("gpus", gpus / limit), ("h100", gpus / 2 / limit), ("cpu", 0.3), ("memory", 0.4)):
            book.gauge(at, "stoker_queue_limit_used_ratio", held, queue=queue, resource=resource, **own)
        book.gauge(at, "stoker_queue_startable_seconds", max(0.0, wave(at, 3, 40)), queue=queue, instance="api-0")
        for le in (*WAITS_S, "+Inf"):
            part = 1.0 if le == "+Inf" else min(1.0, (float(le) / (900 + hash_of(queue) % 1800)) ** 0.5)
            book.add(at, "stoker_queue_wait_seconds_bucket", 0.05 * part, queue=queue, le=le)
        book.add(at, "stoker_gangs_withdrawn_total", 0, queue=queue, **own)
        for reason, gpus_a_step in (("Reclaimed", 0.02), ("Preempted", 0.01)):
            which = {"queue": queue, "reason": reason, **own}
            book.add(at, "stoker_preempted_gpus_total", gpus_a_step, **which)
            book.add(at, "stoker_preempted_gpu_seconds_lost_total", 90 * gpus_a_step, **which)
    for job in JOBS:
        over = sum(1 for run in job.runs if run.end < share)
        if over:
            category, intent = job.ending
            ended = {"queue": job.queue, "category": category, "intent": intent}
            before = book.total("stoker_attempts_ended_total", **ended)
            book.add(at, "stoker_attempts_ended_total", over - before, **ended, **own)


def _api(book: Book, at: float, share: float) -> None:
    for model in {model.name: model for _, model in NODES.values()}.values():
        book.gauge(at, "stoker_gpu_hour_price", model.price, model=model.name)
    book.gauge(at, "stoker_api_disk_used_ratio", 0.41 + 0.02 * share, folder="logs")
    book.gauge(at, "stoker_api_streams", round(3 + wave(at, 1, 2)), kind="logs")
    book.add(at, "stoker_api_log_bytes_total", STEP_S * 21_000)
    book.add(at, "stoker_api_progress_reports_total", STEP_S * 1.4, outcome="taken")
    for code, rate in (("200", 9.0), ("404", 0.1)):
        labels = {"route": "/v1/jobs", "method": "GET", "code": code}
        book.add(at, "stoker_api_request_seconds_count", STEP_S * rate, **labels)
        for le, part in ((0.005, 0.4), (0.01, 0.8), (0.05, 0.985), (0.1, 0.995), ("+Inf", 1)):
            book.add(at, "stoker_api_request_seconds_bucket", STEP_S * rate * part, le=le, **labels)
    if share > 0.76:
        book.gauge(
            at, "ALERTS", 1, alertname="StokerGpuLost", alertstate="firing", severity="critical", node="gpu-a-01"
        )
    if share > 0.3:
        book.gauge(at, "ALERTS", 1, alertname="StokerJobIdle", alertstate="firing", severity="warning",
                   project="vision", job_name="notebook")  # fmt: skip
