"""The lease table: never two holders, never a port twice, and words with numbers when something is short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.local.agent.leases import (
    GIB,
    MOST_PEERS,
    CannotLease,
    HeldByOthers,
    LeaseTable,
    Wish,
    WorkerLease,
    leasable_ports,
    port_is_free,
)
from stoker.spec.node import Gpu
from tests.support.examples import examples


def gpu(index, model="NVIDIA H200", gib=141, unavailable="", able="9.0"):
    memory = gib * GIB
    return Gpu(
        uuid=f"G{index}",
        index=index,
        model=model,
        memory_bytes=memory,
        compute_capability=able,
        unavailable=unavailable,
    )


def table(*gpus, ports=range(1000, 1100)):
    made = LeaseTable(ports, lambda port: port % 7 != 0)
    made.set_inventory(gpus)
    return made


class Leasing(RuleBasedStateMachine):
    """Pods come and go, GPUs are lost and found, agents come back."""

    def __init__(self):
        super().__init__()
        self.table = table()
        self.leases = {}
        self.gangs = {}
        self.inventory = ()

    @rule(lost=st.sets(st.integers(0, 5)), busy=st.sets(st.integers(0, 5)))
    def look(self, lost, busy):
        self.inventory = tuple(gpu(i, unavailable="busy" if i in busy else "") for i in range(6) if i not in lost)
        self.table.set_inventory(self.inventory)

    @rule(pod=st.integers(0, 7), count=st.integers(0, 3), job=st.integers(0, 2))
    def take(self, pod, count, job):
        free = {g.uuid for g in self.inventory if not g.unavailable} - set(self.table.holders)
        try:
            lease = self.table.take(f"p{pod}", (f"j{job}", 1), Wish(gpus=count), peers=1 + job)
        except CannotLease:
            assert f"p{pod}" in self.leases or len(free) < count
        else:
            assert f"p{pod}" not in self.leases and len(lease.gpu_uuids) == count
            assert set(lease.gpu_uuids) <= free
            assert len(lease.peer_ports) == (1 + job if job else 0)
            self.leases[f"p{pod}"], self.gangs[f"p{pod}"] = lease, f"j{job}"

    @rule(pod=st.integers(0, 7))
    def release(self, pod):
        self.table.release(f"p{pod}")
        self.leases.pop(f"p{pod}", None)

    @rule()
    def come_back(self):
        self.table = table()
        for pod, lease in self.leases.items():
            self.table.adopt(pod, (self.gangs[pod], 1), lease)
        self.table.set_inventory(self.inventory)

    @invariant()
    def nothing_is_held_twice(self):
        held = [uuid for lease in self.leases.values() for uuid in lease.gpu_uuids]
        assert len(held) == len(set(held))
        assert self.table.holders == {u: pod for pod, lease in self.leases.items() for u in lease.gpu_uuids}
        metrics = [lease.metrics_port for lease in self.leases.values()]
        shared = {(self.gangs[pod], lease.master_port, lease.peer_ports) for pod, lease in self.leases.items()}
        assert len({gang for gang, _, _ in shared}) == len(shared), "a gang with two rendezvous ports"
        assert all(peers[0] == port for _, port, peers in shared if peers)
        ports = metrics + [port for _, port, peers in shared for port in peers or (port,)]
        assert len(ports) == len(set(ports))


TestLeasing = Leasing.TestCase
TestLeasing.settings = examples(60, stateful_step_count=30)


@pytest.mark.parametrize(
    ("wish", "what", "says"),
    [
        (Wish(gpus=4), CannotLease, "asks for 4 GPUs, 1 free: 4 here, 1 unavailable (lost), 2 held by other workers"),
        (Wish(gpus=1, models=("B200",)), CannotLease, "asks for 1 GPU like B200, 0 free: 4 here, 0 of that kind"),
        (
            Wish(gpus=1, min_capability=91),
            CannotLease,
            "asks for 1 GPU of compute capability 9.1 or more, 0 free: 4 here, 0 of that kind",
        ),
        (
            Wish(gpus=1, max_power_watts=400),
            CannotLease,
            "asks for 1 GPU limited to 400 W or less, 0 free: 4 here, 0 of that kind",
        ),
        (
            Wish(gpus=2, min_memory_bytes=100 * GIB),
            HeldByOthers,
            "asks for 2 GPUs with at least 100 GiB, 0 free: 4 here, 2 of that kind, 2 held by other workers",
        ),
    ],
)
def test_a_refusal_says_by_how_much(wish, what, says):
    leases = table(gpu(0), gpu(1), gpu(2, "NVIDIA L4", 24), gpu(3, "NVIDIA L4", 24, "lost"))
    leases.adopt("other", ("j", 1), WorkerLease(("G0", "G1"), False, 1001, 1002))
    with pytest.raises(CannotLease) as refusal:
        leases.take("pod", ("k", 1), wish)
    assert type(refusal.value) is what and str(refusal.value) == says


def test_the_smallest_gpu_that_fits_is_given():
    leases = table(gpu(0), gpu(1, "NVIDIA L4", 24), gpu(2))
    assert leases.take("a", ("j", 1), Wish(gpus=1)).gpu_uuids == ("G1",)
    assert leases.take("b", ("j", 1), Wish(gpus=1, models=("h200",))).gpu_uuids == ("G0",)


def test_real_and_simulated_gpus_are_never_mixed():
    simulated = [gpu(i, "Simulated GPU", 16).model_copy(update={"simulated": True}) for i in (1, 2)]
    leases = table(gpu(0), *simulated)
    with pytest.raises(CannotLease, match="2 of the free ones simulated"):
        leases.take("a", ("j", 1), Wish(gpus=3))
    assert leases.take("b", ("j", 1), Wish(gpus=1)).gpu_uuids == ("G0",)
    lease = leases.take("c", ("j", 1), Wish(gpus=2))
    assert lease.simulated and lease.gpu_uuids == ("G1", "G2")


def test_anothers_gpu_can_not_be_adopted():
    leases = table(gpu(0))
    leases.take("a", ("j", 1), Wish(gpus=1))
    with pytest.raises(CannotLease):
        leases.adopt("b", ("k", 1), WorkerLease(("G0",), False, 1001, 1002))


def test_a_gang_too_large_for_a_port_each_has_its_rendezvous_alone():
    leases = table(ports=range(1001, 1300))
    few = leases.take("a", ("j", 1), Wish(), peers=MOST_PEERS)
    assert len(set(few.peer_ports)) == MOST_PEERS and few.peer_ports[0] == few.master_port
    many = leases.take("b", ("k", 1), Wish(), peers=MOST_PEERS + 1)
    assert many.peer_ports == () and many.master_port not in few.peer_ports
    leases.release("a")
    leases.release("b")
    assert leases.take("c", ("j", 1), Wish()).peer_ports == ()


def test_ports_run_out_with_a_message():
    leases = table(ports=range(1001, 1004))
    leases.take("a", ("j", 1), Wish())
    with pytest.raises(CannotLease, match="of the 3 ports that may be leased 0 are free, 2 wanted"):
        leases.take("b", ("k", 1), Wish())
    assert leases.holders == {}


@given(low=st.integers(1, 65_535), span=st.integers(0, 65_535))
def test_leasable_ports_leave_the_kernels_alone(tmp_path_factory, low, span):
    proc = tmp_path_factory.mktemp("proc")
    file = proc / "sys/net/ipv4/ip_local_port_range"
    file.parent.mkdir(parents=True)
    high = min(65_535, low + span)
    file.write_text(f"{low}\t{high}\n")
    ports = leasable_ports(proc)
    assert len(ports) >= 100 and ports[0] >= 10_000 and ports[-1] <= 65_535
    if ports != range(10_000, 65_536):
        assert not set(ports) & set(range(low, high + 1))


def test_a_port_that_is_listened_on_is_not_free():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])


def test_what_is_known_besides_the_inventory_counts_at_the_moment_of_the_lease():
    known = {"G0": {"unavailable": "sick: XID 79"}, "G1": {"power_limit_watts": 350}}
    leases = LeaseTable(
        range(1000, 1100),
        lambda port: True,
        lambda gpus: tuple(one.model_copy(update=known.get(one.uuid, {})) for one in gpus),
    )
    leases.set_inventory((gpu(0), gpu(1), gpu(2)))
    assert leases.take("a", ("j", 1), Wish(gpus=1, max_power_watts=400)).gpu_uuids == ("G1",)
    with pytest.raises(CannotLease, match=r"1 unavailable \(sick: XID 79\)"):
        leases.take("b", ("k", 1), Wish(gpus=2))
    del known["G0"]
    assert set(leases.take("b", ("k", 1), Wish(gpus=2)).gpu_uuids) == {"G0", "G2"}


def test_a_gpu_that_held_back_a_gang_comes_last():
    blamed = gpu(0).model_copy(update={"blamed": True})
    made = table(blamed, gpu(1), gpu(2, gib=192))
    assert made.take("p0", ("j0", 1), Wish(gpus=2), peers=1).gpu_uuids == ("G1", "G2")
    assert made.take("p1", ("j1", 1), Wish(gpus=1), peers=1).gpu_uuids == ("G0",)


def test_a_burn_in_gets_the_very_gpu_that_is_sick_and_waits_for_it():
    sick = {"unavailable": "sick: XID 79"}
    leases = LeaseTable(
        range(1000, 1100), lambda port: True, lambda gpus: tuple(one.model_copy(update=sick) for one in gpus)
    )
    leases.set_inventory((gpu(0), gpu(1), gpu(2, unavailable="lost")))
    assert leases.take("a", ("j", 1), Wish(gpus=1, uuid="G1")).gpu_uuids == ("G1",)
    with pytest.raises(HeldByOthers, match="asks for 1 GPU named G1, 0 free"):
        leases.take("b", ("k", 1), Wish(gpus=1, uuid="G1"))
    for gone in ("G2", "G9"):
        with pytest.raises(CannotLease):
            leases.take("b", ("k", 1), Wish(gpus=1, uuid=gone))
