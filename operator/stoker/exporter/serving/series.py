"""A snapshot as samples, in the catalogue's order. Keeps the labels of the poll before, which hardly change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stoker.exporter.catalogue import EXPORTER, HARDWARE, JOB, MIG, TABLES, Family
from stoker.exporter.meters.snapshot import GpuState, Snapshot
from stoker.push.samples import Sample

Labels = tuple[tuple[str, str], ...]
Row = tuple[Labels, Mapping[str, float]]
"""Labels that a thing's series share, and its flat values."""


class SampleMaker:
    """Cost: 1 µs a series; hashing every series' labels anew cost twice that (bench_exporter)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Labels], dict[str, tuple[str, Labels]]] = {}
        """Table and a row's labels → flat key → family, the series' whole labels."""

    def samples(self, snapshot: Snapshot) -> list[Sample]:
        node = snapshot.node
        before, self._known = self._known, {}
        gpus = [(gpu, (("node", node), ("gpu", str(gpu.index)), ("uuid", gpu.uuid))) for gpu in snapshot.gpus]
        accounts = snapshot.books.accounts
        hardware: list[Row] = [(labels, {**gpu.values, **accounts.get(gpu.uuid, {})}) for gpu, labels in gpus]
        mig = [
            ((*labels, ("mig_uuid", one.uuid), ("profile", one.profile)), one)
            for gpu, labels in gpus
            for one in gpu.mig
        ]
        special = {"info": _info(gpus), "allocation_share_ratio": _shares(node, gpus)}
        slices = {"info": [Sample("", (*labels, ("slices", str(one.slices))), 1.0) for labels, one in mig]}
        version = [Sample("", (("node", node), ("version", snapshot.version)), 1.0)] if snapshot.version else []
        return [
            *self._table("stoker_gpu_", HARDWARE, hardware, special, before),
            *self._table("stoker_mig_", MIG, [(labels, one.values) for labels, one in mig], slices, before),
            *self._table("stoker_job_gpu_", JOB, list(_jobs(snapshot)), {}, before),
            *self._table(
                "stoker_exporter_",
                EXPORTER,
                [((("node", node),), snapshot.exporter)],
                {"build_info": version},
                before,
            ),
        ]

    def _table(
        self,
        prefix: str,
        families: tuple[Family, ...],
        rows: list[Row],
        special: Mapping[str, Iterable[Sample]],
        before: dict[tuple[str, Labels], dict[str, tuple[str, Labels]]],
    ) -> Iterator[Sample]:
        """special: Family → samples whose name is still to be put in."""
        own = {family.name: family.labels for family in families}
        of_family: dict[str, list[tuple[Labels, float]]] = {family.name: [] for family in families}
        for labels, values in rows:
            known = self._known[prefix, labels] = before.get((prefix, labels), {})
            for key, value in values.items():
                series = known.get(key)
                if series is None:
                    name, *texts = key.split("|")
                    more = ((label, text) for label, text in zip(own.get(name, ()), texts, strict=False) if text)
                    series = known[key] = (name, (*labels, *more))
                if series[0] in of_family:
                    of_family[series[0]].append((series[1], value))
        for family in families:
            name = prefix + family.name
            for sample in special.get(family.name, ()):
                yield Sample(name, sample.labels, sample.value)
            for whole, value in of_family[family.name]:
                yield Sample(name, whole, value)


def _info(gpus: Iterable[tuple[GpuState, Labels]]) -> list[Sample]:
    return [Sample("", (*labels, *_known(gpu.info)), 1.0) for gpu, labels in gpus if gpu.info]


def _shares(node: str, gpus: Iterable[tuple[GpuState, Labels]]) -> list[Sample]:
    found = []
    for gpu, _ in gpus:
        for share in gpu.shares:
            owner = share.owner
            whose = {"pod_namespace": owner.pod_namespace, "pod_name": owner.pod_name, "pod_uid": owner.pod_uid}
            if owner.job_uid:
                whose |= {"job_uid": owner.job_uid, "attempt": str(owner.attempt), "worker": str(owner.worker)}
            device = {"node": node, "gpu": str(gpu.index), "uuid": share.uuid}
            found.append(Sample("", _known({**device, **whose, "method": share.method}), share.share))
    return found


def _jobs(snapshot: Snapshot) -> Iterator[Row]:
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
        yield _known(labels), job.values


def _known(labels: Mapping[str, str]) -> Labels:
    """Of those with a value: an empty label is none."""
    return tuple((name, value) for name, value in labels.items() if value)


def catalogue_names() -> dict[str, Family]:
    """Whole name → family, of every family that can be shown."""
    return {prefix + family.name: family for prefix, (families, _) in TABLES.items() for family in families}
