"""What people ask for and what kubectl and the api answer: one table, summed up in docs/verify.md.

Alice and Carol are of project alpha, Bob of beta. Alice may use every queue and runtime there, Carol those of GRANTED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stoker.spec.job_parts import MAX_SECRETS

QUEUES: dict[str, dict[str, Any]] = {
    "default": {},
    "capped": {"highestPriority": 10},
    "gold": {},
    "theirs": {"projects": ["beta"]},
    "bare": {},
}
RUNTIMES: dict[str, dict[str, Any]] = {
    "default": {},
    "fast": {"data": [{"name": "sets", "source": {"hostPath": {"path": "/srv/sets"}}}]},
    "gilded": {},
    "closed": {"projects": ["beta"]},
}
GRANTED = {
    "queues": ["default", "capped", "theirs", "vanished"],
    "trainingruntimes": ["fast", "closed", "vanished"],
    "projectsecrets": [f"own-{number}" for number in range(MAX_SECRETS)],
}
"""`vanished`: nothing of the name is there. Carol may not list queues or runtimes, Alice may."""

SUBMITTER = "stoker.dev/submitter"
CAROL = "system:serviceaccount:alpha:carol"


@dataclass(frozen=True)
class Case:
    """`kubectl`: words of its refusal, "": taken. `api`: its status and code, (201, ""): taken."""

    name: str
    kubectl: str
    api: tuple[int, str]
    spec: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    who: str = "carol"

    def body(self, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "stoker.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": "alpha", **self.metadata},
            "spec": {"trainer": {"command": ["true"]}, **self.spec},
        }

    def __str__(self) -> str:
        return self.name


OK = (201, "")
UNKNOWN = (422, "InvalidFields")
SECRET = (403, "SecretForbidden")


def _none(what: str, name: str, verb: str) -> str:
    return f"spec.{what}: there is no {what} {name} that {CAROL} may {verb} in project alpha"


def _secret(name: str) -> str:
    return f"spec.secretEnv: there is no secret {name} that {CAROL} may use in project alpha"


def secrets(count: int, last: str = "") -> dict[str, Any]:
    """A job's secrets: Carol's own, but for the last."""
    names = [f"own-{number}" for number in range(count)]
    return {"secretEnv": {f"S{at}": {"secret": name} for at, name in enumerate([*names[:-1], last or names[-1]])}}


def _field(name: str, spec: dict[str, Any]) -> Case:
    return Case(f"a pod's field: {name}", f'unknown field "spec.{name}"', UNKNOWN, spec)


def _ours(name: str, metadata: dict[str, Any]) -> Case:
    return Case(name, "names under stoker.dev/ are set by Stoker", UNKNOWN, metadata=metadata)


CASES = [
    Case("nothing special", "", OK),
    Case("a queue of one's own", "", OK, {"queue": "capped", "priority": 10}),
    Case("another's queue", _none("queue", "gold", "spend"), (403, "QueueForbidden"), {"queue": "gold"}),
    Case("a queue that is not there", _none("queue", "none", "spend"), (403, "QueueForbidden"), {"queue": "none"}),
    Case("any queue, for a user who may use all", "", OK, {"queue": "gold"}, who="alice"),
    Case(
        "a queue that is closed to the project",
        "spec.queue: queue theirs does not take jobs of project alpha",
        (403, "QueueForbidden"),
        {"queue": "theirs"},
    ),
    Case("a right to a queue that is gone", "", (403, "QueueForbidden"), {"queue": "vanished"}),
    Case("a mistyped queue, for who may list them", "", (422, "UnknownQueue"), {"queue": "glod"}, who="alice"),
    Case(
        "a priority above the queue's highest",
        "spec.priority: 11 is above the highest that queue capped takes, 10",
        (422, "PriorityTooHigh"),
        {"queue": "capped", "priority": 11},
    ),
    Case("a runtime of one's own", "", OK, {"runtime": "fast"}),
    Case("runtime `default`", "", OK, {"runtime": "default"}),
    Case(
        "another's runtime",
        _none("runtime", "gilded", "run workers in,"),
        (403, "RuntimeForbidden"),
        {"runtime": "gilded"},
    ),
    Case(
        "a runtime that is not there",
        _none("runtime", "none", "run workers in,"),
        (403, "RuntimeForbidden"),
        {"runtime": "none"},
    ),
    Case(
        "a runtime that is closed to the project",
        "spec.runtime: runtime closed does not take jobs of project alpha",
        (403, "RuntimeForbidden"),
        {"runtime": "closed"},
    ),
    Case("data that the runtime offers", "", OK, {"runtime": "fast", "data": [{"name": "d", "path": "sets"}]}),
    *(
        Case(
            f"data that it does not offer: {path}",
            f"spec.data: runtime fast offers no data {path}",
            UNKNOWN,
            {"runtime": "fast", "data": [{"name": "a", "claim": "c"}, {"name": "d", "path": path}]},
        )
        for path in ("others", "/srv/sets")
    ),
    Case("a right to a runtime that is gone", "", (403, "RuntimeForbidden"), {"runtime": "vanished"}),
    Case("a mistyped runtime, for who may list them", "", (422, "UnknownRuntime"), {"runtime": "fsat"}, who="alice"),
    Case("a secret of one's own, though there is none", "", OK, {"secretEnv": {"A": {"secret": "own-1"}}}),
    Case("as many of one's own as a job may have", "", OK, secrets(MAX_SECRETS)),
    Case("another's secret", _secret("theirs"), SECRET, {"secretEnv": {"A": {"secret": "theirs"}}}),
    Case("another's secret among many of one's own", _secret("theirs"), SECRET, secrets(MAX_SECRETS, "theirs")),
    Case("another's secret, for who may use all", "", OK, {"secretEnv": {"A": {"secret": "theirs"}}}, who="alice"),
    Case(
        "a Secret that is not for jobs",
        "secretEnv.A.secret in body should match",
        UNKNOWN,
        {"secretEnv": {"A": {"secret": "../default-token"}}},
        who="alice",
    ),
    Case(
        "another's name as submitter",
        f"is who submits, {CAROL}; leave it out",
        UNKNOWN,
        metadata={"annotations": {SUBMITTER: "system:serviceaccount:alpha:alice"}},
    ),
    Case("one's own name as submitter", "", UNKNOWN, metadata={"annotations": {SUBMITTER: CAROL}}),
    _ours("a forged idempotency key", {"annotations": {"stoker.dev/idempotency-key": "k"}}),
    _ours("a forged request digest", {"annotations": {"stoker.dev/request-digest": "d"}}),
    _ours("a label of ours", {"labels": {"stoker.dev/job": "x"}}),
    _ours("a label of a domain of ours", {"labels": {"api.stoker.dev/job": "x"}}),
    Case("a label of one's own", "", OK, metadata={"labels": {"notstoker.dev/team": "x"}}),
    _field("serviceAccountName", {"serviceAccountName": "stoker-api"}),
    _field("volumes", {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}),
    _field("data[0].hostPath", {"data": [{"name": "host", "claim": "x", "hostPath": {"path": "/"}}]}),
    _field("securityContext", {"securityContext": {"privileged": True}}),
    _field("trainer.securityContext", {"trainer": {"command": ["true"], "securityContext": {"privileged": True}}}),
    _field("hostNetwork", {"hostNetwork": True}),
    _field("tolerations", {"tolerations": [{"operator": "Exists"}]}),
    _field("nodeName", {"nodeName": "control-plane"}),
    _field("template", {"template": {"spec": {"containers": []}}}),
    Case("another's project", "cannot create resource", (404, "NotFound"), who="bob"),
]


@dataclass(frozen=True)
class Change:
    """A merge patch of a job of Carol's in queue `capped` with priority 5. `refused`: words, "": taken."""

    name: str
    patch: dict[str, Any]
    refused: str = ""
    who: str = "carol"

    def __str__(self) -> str:
        return self.name


def _priority(value: int) -> dict[str, Any]:
    return {"spec": {"priority": value}}


def _meta(**maps: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": maps}


CHANGES = [
    Change("suspended", {"spec": {"suspend": True}}),
    Change("a priority up to the highest", _priority(10)),
    Change("a priority above the highest", _priority(11), "11 is above the highest that queue capped takes, 10"),
    Change("a lower priority", _priority(-5)),
    Change("a higher priority without the right to the queue", _priority(6), "there is no queue capped that", "lost"),
    Change("a lower priority without the right to the queue", _priority(1), who="lost"),
    Change("suspended without the right to the queue", {"spec": {"suspend": True}}, who="lost"),
    Change("another submitter", _meta(annotations={SUBMITTER: "root"}), "who submitted a job never changes"),
    Change("no submitter", _meta(annotations={SUBMITTER: None}), "who submitted a job never changes"),
    Change("an annotation of ours", _meta(annotations={"stoker.dev/idempotency-key": "k"}), "are set by Stoker"),
    Change("a label of ours", _meta(labels={"stoker.dev/queue": "gold"}), "are set by Stoker"),
    Change("notes of one's own", _meta(annotations={"example.com/note": "x"}, labels={"team": "x"})),
    Change("what never changes", {"spec": {"queue": "gold"}}, "can't be changed once the job exists"),
]
