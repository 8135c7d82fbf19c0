"""GPU types: on which a job is tried, whose limit and guarantee it counts in, and what `why` says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.sched.decide import decide
from stoker.spec.job import Phase
from stoker.spec.job_parts import Elastic
from stoker.spec.queue import QueueResources, QueueSpec
from stoker.spec.queue_tree import links
from stoker.why.explain import explain
from tests.support.examples import examples
from tests.support.preempting import claims, run, wrote

WHOLE = {"h100": 4, "a100": 3, "t4": 6}
ROOM = {**WHOLE, "l4-shared": 2}
PARTS = {"mig-1g.10gb": {"n-h100": 2, "n-parts": 1}, "t4-shared": {"n-parts": 3, "n-more": 2}}
"""Type → node → how many slices or shared GPUs with names of their own; beside whole GPUs, beside others, and alone."""
NAMED = {"mig-1g.10gb": "nvidia.com/mig-1g.10gb", "t4-shared": "nvidia.com/gpu.shared"}
TYPES = [*ROOM, *PARTS]
LEAVES, INNER = ["a", "b", "c"], "top"


def cluster(sched: SimpleNamespace, room: dict[str, int] | None = None) -> list[Any]:
    return [sched.node(f"n-{name}", count, model=f"NVIDIA {name.upper()}") for name, count in (room or WHOLE).items()]


def with_parts(sched: SimpleNamespace) -> list[Any]:
    nodes = {f"n-{name}": (name, count) for name, count in ROOM.items()} | {"n-parts": ("t4", 0), "n-more": ("t4", 0)}
    return [
        sched.node(
            name,
            count,
            model=f"NVIDIA {model.upper()}",
            shared=model.endswith("shared"),
            parts={NAMED[one]: there[name] for one, there in PARTS.items() if name in there},
        )
        for name, (model, count) in nodes.items()
    ]


def types(decisions: Any) -> dict[str, str]:
    return {start.key.name: start.gpu_type for start in decisions.starts}


amounts = st.dictionaries(st.sampled_from(TYPES), st.integers(0, 4), max_size=2)
specs = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([None, None, 3, 6]),
        "types": amounts,
        "guarantee": st.sampled_from([None, None, 2, 4]),
        "guaranteed": amounts.map(lambda some: {"gpu_types": some}),
        "weight": st.integers(1, 2),
        "lately_of": st.sampled_from([{}, {}, {"h100": 1.5, "t4": 0.5}]),
    }
)
trees = st.fixed_dictionaries({name: st.tuples(specs, st.sampled_from([None, INNER])) for name in LEAVES}).flatmap(
    lambda leaves: st.tuples(specs, st.none()).map(lambda top: leaves | {INNER: top})
)
whole = st.tuples(st.integers(1, 3), st.sampled_from([(), (), (), ("h100",), ("a100", "t4")]), st.just(""))
parts = st.tuples(st.just(1), st.just(()), st.sampled_from(list(PARTS)))
asks = st.tuples(st.sampled_from(LEAVES), st.one_of(whole, whole, parts))
"""(Queue, (GPUs; models; the type of a slice or shared GPU with a name of its own))."""
taken = st.lists(st.tuples(st.sampled_from([*PARTS]), st.sampled_from(["n-h100", "n-parts", "n-more"])), max_size=2)
"""What pods outside Stoker hold from then on, if it is free."""
rounds = st.lists(st.tuples(st.lists(asks, max_size=6), st.integers(0, 2**12), taken), min_size=1, max_size=4)


class Model:
    """All by looking at every job and every type again."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree, self.placed = tree, links({name: spec_of(*spec) for name, spec in tree.items()})
        self.named = any(spec["types"] or self.placed[name].guarantee.of_types for name, (spec, _) in tree.items())
        self.jobs: dict[str, tuple[str, int, tuple[str, ...], str]] = {}
        self.waiting: list[str] = []
        self.running: dict[str, tuple[str, str]] = {}
        """Job → type, node."""
        self.others: list[tuple[str, str]] = []

    def path(self, name: str) -> list[str]:
        parent = self.placed[name].parent
        return [*(self.path(parent) if parent else []), name]

    def used(self, queue: str, gpu_type: str | None = None) -> int:
        return sum(
            self.jobs[job][1]
            for job, (on, _) in self.running.items()
            if gpu_type in (None, on) and queue in self.path(self.jobs[job][0])
        )

    def suiting(self, name: str) -> list[str]:
        _, gpus, wanted, part = self.jobs[name]
        if part:
            return [part]
        whole = [one for one in ROOM if gpus == 1 or not one.endswith("shared")]
        return sorted(one for one in whole if not wanted or one in wanted)

    def below(self, queue: str, suiting: list[str]) -> bool:
        guarantee = self.placed[queue].guarantee
        if guarantee.gpus is not None and self.used(queue) >= guarantee.gpus:
            return False
        of_types = [one for one in suiting if one in guarantee.of_types]
        if any(self.used(queue, one) < guarantee.of_types[one] for one in of_types):
            return True
        return guarantee.gpus is not None and len(of_types) < len(suiting)

    def rank(self, name: str) -> tuple[Any, ...]:
        levels: list[Any] = []
        for queue in self.path(self.jobs[name][0]):
            levels += [not self.below(queue, self.suiting(name)), self.share(queue)]
        return (*levels, *levels[-2:] * (2 - len(levels) // 2), self.waiting.index(name))

    def share(self, queue: str) -> float:
        """Of all GPUs, or of those of a type, where some queue names types."""
        there = ROOM | {name: sum(nodes.values()) for name, nodes in PARTS.items()}
        spec = self.tree[queue][0]
        parts = [self.used(queue) / sum(there.values())]
        if self.named:
            parts += [(self.used(queue, one) + self.lately_of(queue, one)) / count for one, count in there.items()]
        return max(parts) / spec["weight"]

    def lately_of(self, queue: str, gpu_type: str) -> float:
        found: float = self.tree[queue][0]["lately_of"].get(gpu_type, 0.0)
        return found

    def within(self, name: str, gpu_type: str) -> bool:
        leaf, gpus, *_ = self.jobs[name]
        for queue in self.path(leaf):
            spec = self.tree[queue][0]
            if spec["gpus"] is not None and self.used(queue) + gpus > spec["gpus"]:
                return False
            if gpu_type in spec["types"] and self.used(queue, gpu_type) + gpus > spec["types"][gpu_type]:
                return False
        return True

    def there(self, gpu_type: str) -> dict[str, int]:
        """Node → how many are free."""
        free = dict(PARTS.get(gpu_type, {f"n-{gpu_type}": ROOM.get(gpu_type, 0)}))
        for job, (on, node) in self.running.items():
            if on == gpu_type:
                free[node] -= self.jobs[job][1]
        for part, node in self.others:
            if part == gpu_type:
                free[node] -= 1
        return free

    def tightness(self, node: str) -> Any:
        """The fullest first, of all GPUs; each job has a core's thousandth."""
        free = sum(self.there(one).get(node, 0) for one in TYPES)
        return free, -sum(node == other for _, other in self.running.values()), node

    def free(self, gpu_type: str) -> int:
        return sum(self.there(gpu_type).values())

    def guaranteed(self, name: str, gpu_type: str) -> bool:
        leaf, gpus, *_ = self.jobs[name]
        for queue in self.path(leaf):
            guarantee = self.placed[queue].guarantee
            whole = guarantee.gpus is None or self.used(queue) + gpus <= guarantee.gpus
            mine = guarantee.of_types.get(gpu_type)
            typed = mine is None or self.used(queue, gpu_type) + gpus <= mine
            if (guarantee.gpus is not None or mine is not None) and whole and typed:
                return True
        return False

    def node(self, name: str, gpu_type: str) -> str | None:
        """Where it would be on GPUs of that type."""
        fitting = [node for node, free in self.there(gpu_type).items() if free >= self.jobs[name][1]]
        return min(fitting, key=self.tightness, default=None)

    def on(self, name: str) -> tuple[str, str] | None:
        """The type and the node that it would start on."""
        fitting = {one: node for one in self.suiting(name) if self.within(name, one) and (node := self.node(name, one))}
        chosen = lambda one: (not self.guaranteed(name, one), self.free(one), one)  # noqa: E731
        tight = lambda one: self.tightness(fitting[one])  # noqa: E731
        found = min(fitting, key=chosen if self.named else tight, default=None)
        return None if found is None else (found, fitting[found])

    def starts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while fitting := {name: on for name in self.waiting if name not in found and (on := self.on(name)) is not None}:
            first = min(fitting, key=self.rank)
            self.running[first] = fitting[first]
            found[first] = fitting[first][0]
        self.waiting = [name for name in self.waiting if name not in found]
        return found


def spec_of(spec: dict[str, Any], parent: str | None) -> QueueSpec:
    return QueueSpec(
        parent=parent,
        limit=QueueResources(gpus=spec["gpus"], gpu_types=spec["types"]),
        guarantee=QueueResources(gpus=spec["guarantee"], **spec["guaranteed"]),
    )


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(tree=trees, rounds=rounds)
def test_starts_and_types_are_those_of_a_model_that_tries_everything(
    tree: dict[str, Any], rounds: list[Any], sched: SimpleNamespace
) -> None:
    world = sched.World().feed(*with_parts(sched))
    for name, (spec, parent) in tree.items():
        world.feed(sched.queue(name, parent=parent, budget=0, **spec))
    model = Model(tree)
    made: dict[str, Any] = {}
    for number, (new, ends, others) in enumerate(rounds):
        for part, node in others:
            if model.there(part).get(node, 0) > 0:
                model.others.append((part, node))
                world.feed(sched.other(f"x/o{len(model.others)}", node, **{NAMED[part]: "1"}))
        for leaf, (gpus, wanted, part) in new:
            if any(model.placed[one].parent == leaf for one in tree):
                continue
            name, kind = f"j{len(made):03}", {"resource": NAMED[part]} if part else {"models": wanted}
            small = {"preemptible": False, "cpu": "1m", "memory": "1Mi"}
            made[name] = sched.job(name, gpus, queue=leaf, queued=len(made), **small, **kind)
            model.jobs[name] = (leaf, gpus, wanted, part)
            model.waiting.append(name)
            world.feed(made[name])
        found = types(world.decide(100 + number))
        assert list(found.items()) == list(model.starts().items())
        for name, gpu_type in found.items():
            [placed] = placement = world.state.entries[sched.key(name)].placement
            assert (gpu_type, placed.node) == model.running[name]
            status = {"phase": Phase.RUNNING, "placement": placement, "gpu_type": gpu_type}
            made[name] = wrote(made[name], **status)
            world.feed(made[name])
        for queue in tree:
            typed = world.state.queues[queue].typed
            assert all(one.used.gpus == model.used(queue, gpu_type) for gpu_type, one in typed.items())
        for name in model.waiting:
            reasons = explain(world.state, sched.key(name), sched.at(100 + number)).blockers
            assert reasons, "it waits for no reason"
            for one in (one for one in reasons if str(one.code) == "QueueLimit" and one.resource != "gpus"):
                gpu_type, limits = one.resource.removeprefix("gpus."), model.tree[one.queue][0]["types"]
                assert one.short == model.used(one.queue, gpu_type) + model.jobs[name][1] - limits[gpu_type]
        for i, name in enumerate(list(model.running)):
            if ends >> i & 1:
                del model.running[name]
                world.feed(wrote(made[name], 3, phase=Phase.SUCCEEDED, placement=()))


def test_guaranteed_types_come_first_then_those_with_the_fewest_free(sched: SimpleNamespace) -> None:
    world = sched.World().feed(*cluster(sched), sched.queue("own", guaranteed={"gpu_types": {"t4": 1}}))
    world.feed(*(sched.job(f"x{i}", queue="own", queued=i) for i in range(3)))
    assert types(world.decide()) == {"x0": "t4", "x1": "a100", "x2": "a100"}


def test_a_queue_with_all_gpus_of_one_type_waits_though_it_has_few_of_all(sched: SimpleNamespace) -> None:
    """Its share is all h100 GPUs, and not one GPU of seven, as soon as some queue names types."""
    for types_named, first in (({}, "mine"), ({"h100": 4}, "other")):
        world = sched.World().feed(*cluster(sched, {"h100": 1, "a100": 6}))
        world.feed(sched.queue("own"), sched.queue("busy"), sched.queue("else", types=types_named))
        world.feed(run_on(sched, "h", "h100", queue="own"), *(run_on(sched, n, "a100", queue="busy") for n in "abc"))
        waiting = (
            sched.job(name, queue=queue, models=("a100",)) for name, queue in (("mine", "own"), ("other", "busy"))
        )
        world.feed(*waiting)
        assert next(iter(types(world.decide()))) == first
        shares = {
            level.name: (level.share_of, level.share)
            for name in ("mine", "other")
            for level in explain(world.state, sched.key(name), sched.at(0)).queues
        }
        assert shares["own"] == (("gpus.h100", 1.0) if types_named else ("gpus", round(2 / 7, 4)))


def test_a_gang_runs_on_one_type_where_a_queue_names_types(sched: SimpleNamespace) -> None:
    gang = sched.job("gang", 1, workers=6)
    for limit, starts in (({}, {"gang": ""}), ({"t4": 9}, {})):
        world = sched.World().feed(*cluster(sched, {"h100": 4, "a100": 3}), sched.queue(types=limit), gang)
        assert types(world.decide()) == starts
    world.feed(sched.node("more", 2, model="NVIDIA H100"))
    assert types(world.decide()) == {"gang": "h100"}


def test_what_waits_for_a_limit_of_one_type_and_for_room_on_another_is_woken_by_either(sched: SimpleNamespace) -> None:
    queues = sched.queue(types={"h100": 1}), sched.queue("else")
    for over, on in (("mine", "h100"), ("other", "a100")):
        world = sched.World().feed(*cluster(sched, {"h100": 4, "a100": 1}), *queues)
        world.feed(sched.job("mine"), sched.job("other", queue="else", models=("a100",), queued=1))
        assert types(world.decide(1)) == {"mine": "a100"}
        world.state.drop_assumption(sched.key("mine"))
        world.feed(run_on(sched, "mine", "h100"), run_on(sched, "other", "a100", queue="else"))
        world.feed(sched.job("x", queued=2))
        assert types(world.decide(2)) == {}
        assert world.codes("x", 2) == ["NoCapacity", "QueueLimit"]
        world.feed(wrote(world.state.entries[sched.key(over)].job, 9, phase=Phase.SUCCEEDED, placement=()))
        assert types(world.decide(3)) == {"x": on}


def run_on(sched: SimpleNamespace, name: str, gpu_type: str, **more: Any) -> Any:
    return wrote(run(sched, name, f"n-{gpu_type}", **more), gpu_type=gpu_type)


def test_an_owner_reclaims_gpus_of_its_type_from_those_that_hold_such(sched: SimpleNamespace) -> None:
    queues = [sched.queue("own", guaranteed={"gpu_types": {"h100": 1}}), sched.queue("lent"), sched.queue("mean")]
    world = sched.World().feed(*queues, *cluster(sched, {"h100": 1, "a100": 1}))
    world.feed(run_on(sched, "costly", "h100", queue="lent"), run_on(sched, "cheap", "a100", queue="mean", since=99))
    world.feed(sched.job("x", queue="own"))
    assert claims(decided := world.decide(100)) == {"x": ["costly"]}
    assert decided.claims[0].claim is not None and decided.claims[0].claim.gpu_type == "h100"
    [level] = explain(world.state, sched.key("x"), sched.at(100)).queues
    assert (level.held["gpus.h100"], level.guarantee) == (1, {"gpus.h100": 1})


def test_a_guarantee_of_one_type_reclaims_no_other(sched: SimpleNamespace) -> None:
    queues = [sched.queue("own", guaranteed={"gpu_types": {"h100": 1}}), sched.queue("lent")]
    world = sched.World().feed(*queues, *cluster(sched, {"h100": 1, "a100": 1}))
    world.feed(run_on(sched, "f", "h100", queue="lent"), run_on(sched, "g", "a100", queue="lent"))
    world.feed(sched.job("x", queue="own", models=("a100",)))
    assert claims(world.decide(100)) == {}


def test_a_limit_named_later_counts_what_runs_already(sched: SimpleNamespace) -> None:
    world = sched.World().feed(*cluster(sched, {"h100": 4}), sched.queue("top"), sched.queue(parent="top"))
    world.feed(sched.job("a", 3))
    [start] = world.decide().starts
    world.feed(sched.queue("top", types={"h100": 4}), sched.job("b", 2))
    assert start.gpu_type == "h100" and types(decide(world.state, sched.at(1))) == {}
    assert [one.message for one in explain(world.state, sched.key("b"), sched.at(1)).blockers] == [
        "queue 'top', above 'default', is short 1 of 2 h100 GPUs: its limit is 4 h100 GPUs, its jobs hold 3 h100 GPUs",
        "short 1 of 2 GPUs of type h100: 1 is free on node n-h100; job a holds 3",
    ]


def test_an_elastic_job_grows_and_shrinks_on_gpus_of_its_type(sched: SimpleNamespace) -> None:
    world = sched.World().feed(*cluster(sched, {"h100": 4, "a100": 8}), sched.queue(types={"h100": 3}))
    elastic = Elastic(min=1, max=8)
    job = run_on(sched, "e", "h100")
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"elastic": elastic, "workers": 8})})
    world.feed(job)
    [grown] = world.decide(40 * 60).claims
    assert grown.claim is not None and grown.claim.gpu_type == "h100"
    assert [placed.node for placed in grown.claim.placement] == ["n-h100"] * 3, "within the limit of its type"
