"""A project's secrets as others name them: the Secret behind one on a cluster, and what is said where one is missing.

Never holds a value. Called by what renders pods, by the node agent, the lifecycle, and where secrets are stored.
"""

from __future__ import annotations

import re

from .job_parts import SecretRef
from .names import SECRET_PREFIX, SECRET_VALUE

CONFIG_ERROR = "CreateContainerConfigError"
"""The kubelet's reason of a container that waits for a secret, and our node agent's."""


def object_name(secret: str) -> str:
    """The Secret of a cluster that it is; with a prefix, so that no job reaches a Secret that is not for jobs."""
    return SECRET_PREFIX + secret


def project_name(object_name: str) -> str | None:
    """The other way round; None: it is none of ours."""
    return object_name.removeprefix(SECRET_PREFIX) if object_name.startswith(SECRET_PREFIX) else None


def not_found(ref: SecretRef) -> str:
    """The kubelet's message."""
    return f'secret "{object_name(ref.secret)}" not found'


def no_key(ref: SecretRef, project: str) -> str:
    """The kubelet's message."""
    return f"couldn't find key {ref.key} in Secret {project}/{object_name(ref.secret)}"


def said_of(message: str, ref: SecretRef, project: str) -> str | None:
    """What a kubelet's message says about this secret, for people; None: it is about something else."""
    if not re.search(rf"{re.escape(object_name(ref.secret))}(?![-a-z0-9.])", message):
        return None
    one = ref.secret if ref.key == SECRET_VALUE else f"{ref.secret}/{ref.key}"
    command = f"`stoker secret set {one} -p {project}`"
    if "find key" not in message:
        return f"secret '{ref.secret}' of project '{project}' does not exist: {command}"
    if f"find key {ref.key} " in message:
        return f"secret '{ref.secret}' of project '{project}' has no key '{ref.key}': {command}"
    return None
