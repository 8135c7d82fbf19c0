"""What a job says of its data: where it is from and where workers find it.

Owns the forms of a source. What of it exists is checked by the api (`stoker_api.jobs.data_checks`) and, of a runtime's
names, by the lifecycle. Called by `job`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Self
from urllib.parse import unquote

from pydantic import AfterValidator, Field, field_validator, model_validator

from .fields import DnsLabel, ObjectName
from .markers import Form
from .meta import SpecModel

# Where a worker's container has something of its own: nothing of the user's may be mounted in it or over it.
OWN_PATHS = ("/stoker", "/checkpoints", "/tmp", "/dev", "/proc", "/sys", "/var/run", "/run")

MOUNT_PATH_SAYS = "must be an absolute path without '.', '..', ':' or a '/' too many"
OWN_PATHS_SAYS = f"is a worker's own place ({', '.join(OWN_PATHS)}); mount it elsewhere, for example under /data"
SUB_PATH_SAYS = "must be a path within the volume, without '..'"
SOURCE_SAYS = "give exactly one of claim, path and url"
OF_URL_SAYS = "digest and unpack belong to url; subPath and readOnly: false do not"
FOLDER_SAYS = "a url that ends in / is a folder, of s3, gs or hf, without digest and unpack"
UNPACK_SAYS = "unpack needs a url whose path ends in .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz or .zip"
ARCHIVE = re.compile(r"[^?#]*[.](tar|tar[.]gz|tgz|tar[.]bz2|tar[.]xz|zip)([?#].*)?")
FOLDER = re.compile(r"[^?#]*/")
HTTP_FOLDER = re.compile(r"https?://[^?#]*/([?#].*)?")
DATA_PATH = Form(
    re.compile(r"(/[^\x00-\x1f\x7f]*|[a-z]([-a-z0-9]*[a-z0-9])?)"),
    "must be an absolute path (of a folder on one machine) or the name of data that the runtime offers (on a cluster)",
)


DATA_URL = Form(
    re.compile(r"(https?|s3|gs|hf)://[A-Za-z0-9._:\[\]-]+/[!-~]+"),
    "must begin with https://, http://, s3://, gs:// or hf://, a host or bucket (no user or password: those are "
    "secrets) and a path, without blanks",
)
DATA_DIGEST = Form(re.compile(r"sha256:[0-9a-f]{64}"), "must be sha256: and 64 hex digits, as sha256sum prints them")


def _data_url(value: str) -> str:
    if not DATA_URL.fits(value):
        raise ValueError(DATA_URL.says)
    return value


def _data_digest(value: str) -> str:
    if not DATA_DIGEST.fits(value):
        raise ValueError(DATA_DIGEST.says)
    return value


def _data_path(value: str) -> str:
    if not DATA_PATH.fits(value):
        raise ValueError(DATA_PATH.says)
    return value


DataPath = Annotated[str, Field(min_length=1, max_length=1024), DATA_PATH, AfterValidator(_data_path)]

DataUrl = Annotated[str, Field(max_length=4096), DATA_URL, AfterValidator(_data_url)]
DataDigest = Annotated[str, Field(max_length=71), DATA_DIGEST, AfterValidator(_data_digest)]


class DataVolume(SpecModel):
    """Data that every worker sees, from one place. Its variable STOKER_DATA_<NAME> says where."""

    name: DnsLabel
    """Its name within the job."""
    claim: ObjectName | None = None
    """A PersistentVolumeClaim of this name in the job's project; on a cluster only."""
    path: DataPath | None = None
    """On one machine the absolute path of a folder or file; on a cluster a name that the TrainingRuntime offers."""
    url: DataUrl | None = None
    """A file, or with a / at its end a folder, that is fetched before the workers start, and kept for later jobs of the
    project. Workers find a folder with it in it."""
    digest: DataDigest | None = None
    """The SHA-256 of what the url names: fetched once, and checked. Absent: asked for anew by each attempt."""
    unpack: bool = False
    """The url names an archive: workers find what is in it."""
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
    def cache_name(self) -> str:
        """Of a url: what it is called among the project's fetched data. Nothing else gets the same name."""
        tail = hashlib.sha256(f"{self.url}\n{self.unpack}".encode()).hexdigest()
        if self.digest is None:
            return f"url-{tail[:40]}"
        # The file's own name is part of what workers find.
        file = hashlib.sha256(f"{file_name(self.url or '')}\n{self.unpack}".encode()).hexdigest()
        return f"{self.digest.replace(':', '-')}-{file[:8]}"

    @property
    def variable(self) -> str:
        """The environment variable that says where it is."""
        return variable_of(self.name)

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
        if sum(source is not None for source in (self.claim, self.path, self.url)) != 1:
            raise ValueError(SOURCE_SAYS)
        of_url, of_others = self.digest is not None or self.unpack, bool(self.sub_path) or not self.read_only
        if of_url if self.url is None else of_others:
            raise ValueError(OF_URL_SAYS)
        if self.url is not None and (HTTP_FOLDER.fullmatch(self.url) or (of_url and FOLDER.fullmatch(self.url))):
            raise ValueError(FOLDER_SAYS)
        if self.url is not None and self.unpack and not ARCHIVE.fullmatch(self.url):
            raise ValueError(UNPACK_SAYS)
        return self


def variable_of(name: str) -> str:
    """The environment variable that says where the data of this name is."""
    return f"STOKER_DATA_{name.upper().replace('-', '_')}"


FETCH_VARIABLE = "STOKER_FETCH"
"""What is to be fetched, for `stoker.fetch`."""
FETCH_BYTES = 100 << 30
"""Of a job's fetched data on a cluster where its runtime names no cache; on one machine of all jobs'."""
FETCH_S = 4 * 3600.0
FETCH_ENV = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "HF_ENDPOINT",
        "HF_TOKEN",
        "STORAGE_EMULATOR_HOST",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
    }
)
"""Of a job's own variables and secrets these reach what fetches: none that could lead it to run a program."""


def fetch_order(
    data: Iterable[DataVolume], root: str, project: str, limit_bytes: int = FETCH_BYTES, free_share: float = 0.0
) -> str:
    """What `stoker.fetch` is to do, as JSON; '': nothing. `free_share`: of the cache's disk, that stays free."""
    items = [
        {
            "name": one.name,
            "url": one.url,
            "entry": one.cache_name,
            "file_name": file_name(one.url),
            "digest": (one.digest or "").removeprefix("sha256:"),
            "unpack": one.unpack,
        }
        for one in data
        if one.url is not None
    ]
    order = {
        "root": root,
        "project": project,
        "limit_bytes": limit_bytes,
        "free_share": free_share,
        "timeout_s": FETCH_S,
        "items": items,
    }
    return json.dumps(order) if items else ""


def file_name(url: str) -> str:
    """What a file is called where workers find it."""
    name = unquote(re.split(r"[?#]", url, maxsplit=1)[0].rpartition("/")[2])
    return name if name.isprintable() and "/" not in name and name not in ("", ".", "..") else "data"


def stays_within(path: str) -> bool:
    """Whether a relative path leads nowhere else."""
    return not path.startswith("/") and ".." not in path.split("/")
