"""What a job says of its data: where it is from and where workers find it.

Owns the forms of a source. What of it exists is checked by the api (`stoker_api.jobs.data_checks`) and, of a runtime's
names, by the lifecycle. Called by `job`.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from .fields import DnsLabel, ObjectName
from .markers import Form
from .meta import SpecModel

# Where a worker's container has something of its own: nothing of the user's may be mounted in it or over it.
OWN_PATHS = ("/stoker", "/checkpoints", "/tmp", "/dev", "/proc", "/sys", "/var/run", "/run")

MOUNT_PATH_SAYS = "must be an absolute path without '.', '..', ':' or a '/' too many"
OWN_PATHS_SAYS = f"is a worker's own place ({', '.join(OWN_PATHS)}); mount it elsewhere, for example under /data"
SUB_PATH_SAYS = "must be a path within the volume, without '..'"
SOURCE_SAYS = "give exactly one of claim and path"
DATA_PATH = Form(
    re.compile(r"(/[^\x00-\x1f\x7f]*|[a-z]([-a-z0-9]*[a-z0-9])?)"),
    "must be an absolute path (of a folder on one machine) or the name of data that the runtime offers (on a cluster)",
)


def _data_path(value: str) -> str:
    if not DATA_PATH.fits(value):
        raise ValueError(DATA_PATH.says)
    return value


DataPath = Annotated[str, Field(min_length=1, max_length=1024), DATA_PATH, AfterValidator(_data_path)]


class DataVolume(SpecModel):
    """Data that every worker sees, from one place. Its variable STOKER_DATA_<NAME> says where."""

    name: DnsLabel
    """Its name within the job."""
    claim: ObjectName | None = None
    """A PersistentVolumeClaim of this name in the job's project; on a cluster only."""
    path: DataPath | None = None
    """On one machine the absolute path of a folder or file; on a cluster a name that the TrainingRuntime offers."""
    sub_path: str = Field(default="", max_length=1024)
    """The folder within it that is shown. Empty: all of it."""
    mount_path: str | None = Field(default=None, max_length=1024)
    """Where workers find it on a cluster. Absent: /data/<name>. On one machine it stays where it is."""
    read_only: bool = True
    """Workers can't write there; on one machine nothing keeps them from it."""

    @property
    def place(self) -> str:
        """Where workers on a cluster find it."""
        return self.mount_path or f"/data/{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that says where it is."""
        return f"STOKER_DATA_{self.name.upper().replace('-', '_')}"

    @field_validator("mount_path")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = value.split("/")
        if parts[0] != "" or {"", ".", ".."} & set(parts[1:]) or ":" in value:
            raise ValueError(MOUNT_PATH_SAYS)
        if any(f"{value}/".startswith(f"{own}/") or own.startswith(f"{value}/") for own in OWN_PATHS):
            raise ValueError(OWN_PATHS_SAYS)
        return value

    @field_validator("sub_path")
    @classmethod
    def _relative(cls, value: str) -> str:
        if not stays_within(value):
            raise ValueError(SUB_PATH_SAYS)
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.claim is None) == (self.path is None):
            raise ValueError(SOURCE_SAYS)
        return self


def stays_within(path: str) -> bool:
    """Whether a relative path leads nowhere else."""
    return not path.startswith("/") and ".." not in path.split("/")
