"""A snapshot as metric families, in the catalogue's order: what `page` renders and what a push sends. Pure.

A family's unit is the last word of its name where that is a base unit; OpenMetrics shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import Sample

from stoker.exporter.catalogue import COUNTER, TABLES
from stoker.exporter.meters.snapshot import GpuState, Snapshot

Labels = dict[str, str]
Values = Iterable[tuple[Labels, float]]
"""A family's series."""

UNITS = frozenset({"bytes", "celsius", "hertz", "joules", "ratio", "seconds", "watts"})


def families(snapshot: Snapshot) -> list[Metric]:
    """Those that have a series. Cost: 2 ms for 1,562 series; to render them takes 12 more (tools/bench/exporter.py)."""
    node = {"node": snapshot.node}
    gpus = [(gpu, {**node, "gpu": str(gpu.index), "uuid": gpu.uuid}) for gpu in snapshot.gpus]
    mig = [(one, {**labels, "mig_uuid": one.uuid, "profile": one.profile}) for gpu, labels in gpus for one in gpu.mig]
    accounts = snapshot.books.accounts
    info = [({**labels, **gpu.info}, 1.0) for gpu, labels in gpus if gpu.info]
    slices = [({**labels, "slices": str(one.slices)}, 1.0) for one, labels in mig]
    build = [({**node, "version": snapshot.version}, 1.0)] if snapshot.version else []
    return [
        *_table(
            "stoker_gpu_",
            [(labels, {**gpu.values, **accounts.get(gpu.uuid, {})}) for gpu, labels in gpus],
            {"info": info, "allocation_share_ratio": _shares(snapshot.node, snapshot.gpus)},
        ),
        *_table("stoker_mig_", [(labels, one.values) for one, labels in mig], {"info": slices}),
        *_table("stoker_job_gpu_", _jobs(snapshot), {}),
        *_table("stoker_exporter_", [(node, snapshot.exporter)], {"build_info": build}),
    ]


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Of all families; made when they are first asked for."""
    for family in families(snapshot):
        yield from family.samples


def _table(
    prefix: str, rows: Iterable[tuple[Labels, Mapping[str, float]]], whole: Mapping[str, Values]
) -> Iterator[Metric]:
    """rows: Labels that a thing's series share, and its flat values. whole: Family → its series with all labels."""
    table = {family.name: family for family in TABLES[prefix][0]}
    found: dict[str, list[Sample]] = {
        name: [Sample(prefix + name, _known(labels), value) for labels, value in whole.get(name, ())] for name in table
    }
    for labels, values in rows:
        shared = _known(labels)
        for key, value in values.items():
            name, *texts = key.split("|")
            if name in table:
                own = zip(table[name].labels, texts, strict=False)
                series = {**shared, **{label: text for label, text in own if text}}
                found[name].append(Sample(prefix + name, series, value))
    for name, family in table.items():
        if found[name]:
            stem = name.removesuffix("_total") if family.type == COUNTER else name
            unit = stem.rpartition("_")[2]
            metric = Metric(prefix + stem, family.help, family.type, unit if unit in UNITS else "")
            metric.samples = found[name]
            yield metric


def _shares(node: str, gpus: Iterable[GpuState]) -> Values:
    for gpu in gpus:
        for share in gpu.shares:
            owner = share.owner
            labels = {"node": node, "gpu": str(gpu.index), "uuid": share.uuid, "method": share.method}
            labels |= {"pod_namespace": owner.pod_namespace, "pod_name": owner.pod_name, "pod_uid": owner.pod_uid}
            if owner.job_uid:
                labels |= {"job_uid": owner.job_uid, "attempt": str(owner.attempt), "worker": str(owner.worker)}
            yield labels, share.share


def _jobs(snapshot: Snapshot) -> Iterator[tuple[Labels, Mapping[str, float]]]:
    for job in snapshot.books.jobs:
        owner = job.owner
        labels = {
            "node": snapshot.node,
            "gpu": str(job.index),
            "uuid": job.uuid,
            "project": owner.project,
            "job_uid": owner.job_uid,
            "attempt": str(owner.attempt),
            "worker": str(owner.worker),
        }
        yield labels, job.values


def _known(labels: Labels) -> Labels:
    """Of those with a value: an empty label is none."""
    return {name: value for name, value in labels.items() if value}
