"""The runtimes that the scheduler knows, and which of them a job runs or would run in.

Owns RuntimeState's being there and each project's default. Jobs' entries are `state`'s: it files them anew where this
table says that their runtime is another one. Called by `state` only.
"""

from __future__ import annotations

from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.runtime import TrainingRuntime, effective_runtime

from .eligible import needs_of
from .entries import RuntimeState
from .journal import Journal


class RuntimeTable:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.states: dict[str, RuntimeState] = {}
        self._defaults: dict[str, str] = {}  # project -> runtime of its jobs that name none, where it was asked

    def name_of(self, job: TrainingJob) -> str:
        """The runtime that the job runs or would run in, as things are now."""
        return job.spec.runtime if job.spec.runtime is not None else self._default_of(job.metadata.namespace)

    def of(self, job: TrainingJob) -> RuntimeState:
        return self.named(self.name_of(job))

    def named(self, name: str) -> RuntimeState:
        found = self.states.get(name)
        if found is None:
            found = RuntimeState(name, needs_of(name, None))
            self._journal.put(self.states, name, found)
        return found

    def put(self, name: str, runtime: TrainingRuntime | None) -> tuple[list[Key], list[Key]]:
        """Let it stand there, or None. Returns: the jobs to which it is another one than before; the jobs of projects
        whose default may have moved, which need `of` again. Cost: O(users of the runtimes concerned)."""
        known = self.named(name)
        needs = needs_of(name, runtime)
        same = known.needs == needs and _audience(known.runtime) == _audience(runtime)
        claimed = _claims(known.runtime) ^ _claims(runtime)
        concerned = [self.states.get(default) for default in {self._default_of(project) for project in claimed}]
        moved = [key for state in concerned if state is not None for key in state.users if key.namespace in claimed]
        self._journal.set(known, "runtime", runtime)
        self._journal.set(known, "needs", needs)
        if claimed:
            self._journal.set(self, "_defaults", {})
        return ([] if same else list(known.users)), moved

    def sweep(self, state: RuntimeState) -> None:
        """Forget it if nothing refers to it."""
        if state.runtime is None and not state.users and self.states.get(state.name) is state:
            self._journal.drop(self.states, state.name)

    def _default_of(self, project: str) -> str:
        """The runtime of the project's jobs that name none."""
        found = self._defaults.get(project)
        if found is None:
            known = (state.runtime for state in self.states.values() if state.runtime is not None)
            # Not journalled: it holds while the claims do, and other claims come with another dict.
            found = self._defaults[project] = effective_runtime(None, project, known)
        return found


def _audience(runtime: TrainingRuntime | None) -> tuple[object, ...]:
    return () if runtime is None else (runtime.spec.projects, tuple(one.name for one in runtime.spec.data))


def _claims(runtime: TrainingRuntime | None) -> frozenset[str]:
    return frozenset(() if runtime is None else runtime.spec.default_for)
