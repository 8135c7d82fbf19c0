"""Whatever comes — gaps, lost GPUs, driver resets, restarts of exporter and machine, holders that change or can't be
known — nothing is lost, counted twice or taken back."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from stoker.exporter.clock import NS, UJ
from stoker.exporter.meters.account import ACCOUNTS
from stoker.exporter.meters.ledger import parse, resume
from stoker.exporter.owners import Allocation, Holding
from stoker.exporter.receipts import Receipt
from stoker.nvml.frames import GpuReading, MigReading
from tests.support.examples import examples

from .metering import BEGIN_S, frame, meters, moment, owner

GPUS = 2
MIG = ("MIG-a", "MIG-b")

steps = st.one_of(
    st.tuples(st.just("poll"), st.sampled_from([0.9, 1.0, 1.1, 2.4, 2.6, 30.0]), st.integers(0, 3)),
    st.tuples(st.just("poll"), st.just(1.0), st.just(0)),
    st.tuples(st.just("lose"), st.just(1.0), st.integers(0, GPUS)),
    st.tuples(st.just("silence"), st.sampled_from([0.5, 6.0, 100.0]), st.just(0)),
    st.tuples(st.just("reset"), st.just(1.5), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from([0.1, 20.0]), st.just(0)),
    st.tuples(st.just("crash"), st.sampled_from([0.1, 20.0]), st.just(0)),
    st.tuples(st.just("reboot"), st.sampled_from([30.0, 4000.0]), st.just(0)),
    st.tuples(st.just("hold"), st.just(0.3), st.integers(0, 5)),
    st.tuples(st.just("unknown"), st.just(0.3), st.integers(0, 1)),
)

ALLOCATIONS = (
    (),
    (Holding("GPU-0", owner("a")),),
    (Holding("GPU-0", owner("a"), 0.5, "even"), Holding("GPU-0", owner("b"), 0.5, "even")),
    tuple(Holding("GPU-0", owner(name), 1 / 3, "even") for name in "abc"),
    (Holding("GPU-0", owner("b")), Holding("MIG-a", owner("c")), Holding("MIG-b", owner("d", job=False))),
    (Holding("GPU-0", owner("x", job=False)), Holding("MIG-b", owner("c")), Holding("GPU-9", owner("a"))),
)


@dataclass
class World:
    """A node, and beside it what NVML's counters and the clocks really did."""

    s: float = 0.0
    shift: float = 0.0
    """Seconds by which CLOCK_BOOTTIME lags since reboots."""
    boot: int = 1
    counted_uj: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(GPUS), 0))
    """Energy metered since each GPU's first reading, resets made good."""
    counter: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(GPUS), 5_000_000_000))
    shown: dict[int, int | None] = field(default_factory=lambda: dict.fromkeys(range(GPUS)))
    first: dict[int, float] = field(default_factory=dict)
    last: dict[tuple[str, ...], Receipt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node = meters()
        self.saved = self.node.ledger.as_json(moment(0.0))

    @property
    def now(self):
        now = moment(self.s)
        return now._replace(mono_s=now.mono_s - self.shift)

    def poll(self, kind: int = 0, lost: int = -1) -> None:
        readings = []
        for index in range(GPUS):
            if index == lost:
                readings.append(GpuReading(index, f"GPU-{index}", "GPU_IS_LOST"))
                continue
            values: dict[str, float] = {"power_watts": 300.0}
            if kind != 3:
                values |= {"busy_ratio": (0.0, 0.05, 1.0)[kind], "throttle_seconds_total|sw_power_cap": self.s / 2}
            values["energy_joules_total"] = self.counter[index] / UJ
            mig = tuple(MigReading(uuid, "1g", 2, {"sm_active_ratio": 0.4}) for uuid in MIG) if index == 1 else ()
            readings.append(GpuReading(index, f"GPU-{index}", "", {}, values, None, mig))
            before = self.shown[index]
            if before is not None:
                now = self.counter[index]
                self.counted_uj[index] += now - before if now >= before else now
            self.shown[index] = self.counter[index]
            self.first.setdefault(index, self.s)
        at = frame(self.s, *readings)
        self.node.frame(replace(at, mono_s=self.now.mono_s))

    def step(self, what: str, seconds: float, which: int) -> None:
        self.s += seconds
        for index in range(GPUS):
            self.counter[index] += round(seconds * (50 + 100 * index) * UJ)
        match what:
            case "poll":
                self.poll(which)
            case "lose":
                self.poll(lost=which)
            case "silence":
                self.node.failed()
                self.node.tick(self.now)
            case "reset":
                self.counter = dict.fromkeys(range(GPUS), 70 * UJ)
            case "hold":
                self.node.allocation(Allocation(self.now.mono_s, ALLOCATIONS[which]), self.now)
            case "unknown":
                doubtful = ("GPU-0", "MIG-a")
                self.node.allocation(
                    Allocation(self.now.mono_s, ALLOCATIONS[4][1:], known=bool(which), doubtful=doubtful), self.now
                )
            case "restart":
                self.again(self.node.ledger.as_json(self.now))
            case "crash":
                # Since the last write nothing was shown or sent. What came since comes again.
                self.again(self.saved)
            case "reboot":
                self.shift = BEGIN_S + self.s - 60.0
                self.boot += 1
                self.counter = dict.fromkeys(range(GPUS), 70 * UJ)
                self.again(self.saved)
        self.node.tick(self.now)

    def again(self, saved: bytes) -> None:
        ledger = resume(parse(saved), self.now, f"boot-{self.boot}")
        self.node = meters(ledger)
        if saved is self.saved:
            self.counted_uj, self.shown, self.first = (dict(one) for one in self.at_save)
            if self.boot > self.boot_at_save:  # the driver counts from 0
                self.shown = {index: None if shown is None else 0 for index, shown in self.shown.items()}

    def save(self) -> None:
        self.saved = self.node.ledger.as_json(self.now)
        self.boot_at_save = self.boot
        self.at_save = dict(self.counted_uj), dict(self.shown), dict(self.first)
        receipts = {(receipt.uuid, receipt.job_uid): receipt for receipt in self.node.receipts()}
        for key in receipts.keys() & self.last.keys():
            if receipts[key].begin_at == self.last[key].begin_at:  # else it was forgotten, and began anew
                self.check_grown(self.last[key], receipts[key])
        self.last = receipts

    @staticmethod
    def check_grown(before: Receipt, now: Receipt) -> None:
        assert now.seq > before.seq or now == before
        for name in ("allocated_s", "unobserved_s", "busy_s", "energy_j", "unobserved_energy_j", "at"):
            assert (getattr(now, name) or 0.0) >= (getattr(before, name) or 0.0), name
        assert all(now.idle_s[name] >= seconds for name, seconds in before.idle_s.items())

    def check(self) -> None:
        ledger = self.node.ledger
        for account in ledger.accounts.values():
            index = account.index
            assert set(account.time_ns) == set(account.energy_uj) == set(ACCOUNTS)
            assert min(account.time_ns.values()) >= 0 and min(account.energy_uj.values()) >= 0
            at_s = account.accounted_ns / NS + self.shift - BEGIN_S
            assert abs(sum(account.time_ns.values()) / NS - (at_s - self.first[index])) < 1e-5
            assert abs(sum(account.energy_uj.values()) - self.counted_uj[index]) <= 2, index
        for hold in ledger.holds:
            active_ns = hold.allocated_ns - hold.unobserved_ns - sum(hold.idle_ns.values())
            assert active_ns >= 0 and hold.unobserved_ns >= 0 and hold.pending_ns >= 0
            assert all(0 <= ns <= hold.allocated_ns for ns in (*hold.ratio_ns.values(), *hold.throttled_ns.values()))
        self.check_shown()

    def check_shown(self) -> None:
        """What is scraped is what is posted."""
        shown = {(job.uuid, job.owner.job_uid): job.values for job in self.node.books().jobs}
        receipts = {(r.uuid, r.job_uid): r for r in self.node.receipts()}
        assert shown.keys() == receipts.keys()
        for key, receipt in receipts.items():
            values = shown[key]
            assert values["allocated_seconds_total"] == receipt.allocated_s
            assert values["unobserved_seconds_total"] == receipt.unobserved_s
            assert values.get("busy_seconds_total") == receipt.busy_s
            assert all(values[f"idle_seconds_total|{name}"] == s for name, s in receipt.idle_s.items())
            energy = [value for name, value in values.items() if name.startswith("energy_joules_total")]
            assert abs(sum(energy) - (receipt.energy_j or 0.0)) < 1e-6


@examples(150)
@given(st.lists(steps, max_size=40))
def test_nothing_is_lost_counted_twice_or_taken_back(script):
    world = World()
    world.poll()
    world.save()
    for number, step in enumerate(script):
        world.step(*step)
        world.check()
        if number % 3 == 0:
            world.save()
