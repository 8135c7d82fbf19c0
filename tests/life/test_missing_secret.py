"""A secret that is not there: the job waits in its queue, says which one, holds no GPU, spends no retry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stoker.life.ending import SECRET_BACKOFF_S
from stoker.spec.job import Phase
from stoker.spec.outcome import Category, Intent
from stoker.spec.reasons import Code

from .gang import NOW, after, go, job, pod, status_of
from .test_starting import never_made, waiting

SECRETS = {"WANDB_API_KEY": {"secret": "wandb"}, "HF_TOKEN": {"secret": "hf", "key": "read"}}
NOT_FOUND = 'secret "stoker-secret.wandb" not found'


def starting(workers: int = 1, **spec: Any) -> Any:
    return job(Phase.STARTING, since_s=3, workers=workers, secretEnv=SECRETS, **spec)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (NOT_FOUND, "secret 'wandb' of project 'p' does not exist: `stoker secret set wandb -p p`"),
        (
            "couldn't find key read in Secret p/stoker-secret.hf",
            "secret 'hf' of project 'p' has no key 'read': `stoker secret set hf/read -p p`",
        ),
    ],
)
def test_it_waits_and_says_for_which(said: str, message: str) -> None:
    status = status_of(go(starting(), pod(**waiting("CreateContainerConfigError", said))))
    assert (status.phase, status.intent, status.reason) == (Phase.STOPPING, Intent.WITHDRAW, Code.SECRET_MISSING)
    assert status.message == f"{message}; the gang is withdrawn"
    stopping = after(starting(), status)
    status = status_of(go(stopping, pod(**never_made(NOW))))
    assert (status.phase, status.reason, status.message) == (
        Phase.QUEUED,
        Code.SECRET_MISSING,
        f"{message}; the gang is withdrawn",
    )
    assert (status.attempts[-1].category, status.blamed) == (Category.SECRET_MISSING, ())
    assert status.not_before == NOW + timedelta(seconds=1)


def test_one_worker_that_lacks_it_keeps_the_whole_gang_from_running() -> None:
    two = starting(workers=2)
    status = status_of(go(two, pod(), pod(1, **waiting("CreateContainerConfigError", NOT_FOUND))))
    assert (status.intent, status.message[:9]) == (Intent.WITHDRAW, "worker 1:")


def test_it_looks_again_every_two_minutes_at_the_least_and_never_fails() -> None:
    waits = starting()
    for number in range(1, 12):
        stuck = pod(attempt=number, **waiting("CreateContainerConfigError", NOT_FOUND))
        stopping = after(waits, status_of(go(waits, stuck)))
        queued = status_of(go(stopping, pod(attempt=number, **never_made(NOW))))
        assert queued.phase is Phase.QUEUED and queued.not_before is not None
        assert queued.not_before - NOW <= timedelta(seconds=SECRET_BACKOFF_S)
        again = queued.model_copy(
            update={"phase": Phase.STARTING, "attempt": number + 1, "placement": waits.status.placement}
        )
        waits = after(waits, again.model_copy(update={"placed_at": waits.status.placed_at, "reason": Code.PLACED}))
    assert queued.not_before - NOW == timedelta(seconds=SECRET_BACKOFF_S)


@pytest.mark.parametrize(
    "said",
    [
        'secret "other" not found',
        'secret "stoker-secret.wandb-2" not found',
        "couldn't find key gone in Secret p/stoker-secret.hf",
    ],
)
def test_what_is_not_one_of_its_secrets_is_as_before(said: str) -> None:
    status = status_of(go(starting(), pod(**waiting("CreateContainerConfigError", said))))
    assert (status.reason, status.intent) == (Code.IMAGE_UNAVAILABLE, Intent.NONE)
