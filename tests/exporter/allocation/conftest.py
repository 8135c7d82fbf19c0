"""Nodes with GPUs, kubelets and an api that knows pods, for the tests of allocation."""

import pytest

from stoker.exporter.allocation.jobs import NoAnswer, PodJobs, PodOwner
from stoker.exporter.allocation.kubelet import KubeletAllocation
from stoker.exporter.allocation.kubelet_client import Kubelet
from stoker.exporter.owners import Owner
from stoker.nvml.frames import GpuReading, MigReading

from .kubelet_world import FakeKubelet


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class KnowingApi:
    """`jobs.Asks`: what the api would say, and what it was asked."""

    def __init__(self):
        self.pods = {}
        self.away = False
        self.asked = []

    def knows(self, name, *, namespace="team", job="job-1", uid="pod-1", attempt=1, worker=0, ended=False):
        owner = Owner(namespace, name, uid)
        if job:
            owner = Owner(namespace, name, uid, job, namespace, f"{job}-name", attempt, worker)
        self.pods[namespace, name] = PodOwner(owner, ended)
        return owner

    def ask(self, pods):
        self.asked.append(list(pods))
        if self.away:
            raise NoAnswer("the api is away")
        return [self.pods[pod] for pod in pods if pod in self.pods]


def gpu(index, *, uuid=None, minor=None, mig=()):
    info = {} if minor is None else {"minor": str(minor)}
    return GpuReading(index, uuid or f"GPU-{index:04}", info=info, mig=mig)


def mig(uuid, instance=None):
    return MigReading(uuid, "1g.10gb", 1, gpu_instance=instance)


class Node:
    """A kubelet, its exporter's allocation, and the api behind it."""

    def __init__(self, folder):
        self.clock = Clock()
        self.kubelet = FakeKubelet(folder / "kubelet.sock")
        self.api = KnowingApi()
        self.gpus = [gpu(0), gpu(1)]
        self.client = Kubelet(self.kubelet.socket, timeout_s=5.0, settle_s=0.0)
        self.allocation = KubeletAllocation(
            self.client, lambda: self.gpus, PodJobs(self.api, self.clock), clock=self.clock
        )

    def has(self, *pods):
        self.kubelet.pods = list(pods)
        return self

    def read(self):
        return self.allocation.read()

    def held(self):
        """uuid → [(pod, share, method)]"""
        found = {}
        for one in self.read().holdings:
            found.setdefault(one.uuid, []).append((one.owner.pod_name, one.share, one.method))
        return found


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def api():
    return KnowingApi()


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    made.kubelet.start()
    yield made
    made.client.close()
    made.kubelet.stop()
