"""`python -m tests.support.testbed …` (in tools/): what the Makefile's targets call. Starts what outlives the command.

The bed of `cluster` and `nodes` lies in `$STOKER_TESTBED`, by default in the cache folder; one per user and machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.support.testbed import build, downloads
from tests.support.testbed.control_plane import API, ControlPlane
from tests.support.testbed.errors import BedError, Unavailable
from tests.support.testbed.nodes import NodeBed
from tests.support.testbed.teardown import tear_down


def bed_folder() -> Path:
    """The folder of the bed that outlives its command."""
    return Path(os.environ.get("STOKER_TESTBED") or build.cache() / "bed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="testbed", description="a real Kubernetes on this machine, for tests")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the programs of some groups, or of all")
    building.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"{', '.join(build.GROUPS)}; all of them by default"
    )
    building.add_argument("--or-skip", action="store_true", help="say so where it can't be built (not in CI)")
    cluster = commands.add_parser("cluster", help="a control plane on loopback")
    cluster.add_argument("action", choices=["up", "down"])
    nodes = commands.add_parser("nodes", help="a control plane and real nodes with pretend GPUs (root)")
    nodes.add_argument("action", choices=["up", "down"])
    nodes.add_argument("gpus", nargs="*", type=int, default=[4, 4], help="pretend GPUs of each node (4 4)")
    nodes.add_argument("--image", action="append", type=Path, default=[], help="an image archive for every node")
    down = commands.add_parser("down", help="stop and remove everything of the bed in a folder")
    down.add_argument("folder", type=Path, nargs="?", default=None)
    commands.add_parser("status", help="what runs")
    asked = parser.parse_args()
    try:
        return _run(asked)
    except (Unavailable, BedError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1


def _run(asked: argparse.Namespace) -> int:
    folder = bed_folder()
    if asked.command == "build":
        return _build(asked.groups or list(build.GROUPS), or_skip=asked.or_skip)
    if asked.command == "status":
        return _status(folder)
    if asked.command == "down" or asked.action == "down":
        tear_down(getattr(asked, "folder", None) or folder)
        return 0
    build.build("control-plane")
    build.build("helm")
    if asked.command == "nodes":
        build.build("nodes")
        bed = NodeBed(folder, gpus=asked.gpus, archives=asked.image, guarded=False).start()
        bed.add_storage()
        print(bed.kubectl("get", "nodes"), file=sys.stderr)
        _print_exports(bed.kubeconfig)
        return 0
    plane = ControlPlane.attach(folder)
    if plane is None:
        tear_down(folder)  # what a killed run left there
        plane = ControlPlane(folder, guarded=False).start()
    _print_exports(plane.kubeconfig)
    return 0


def _print_exports(kubeconfig: Path) -> None:
    """For `eval`: the cluster, and its kubectl and helm before those of the machine."""
    print(f"export KUBECONFIG={kubeconfig}")
    print(f"export PATH={build.program('kubectl').parent}:{build.program('helm').parent}:$PATH")


def _build(groups: list[str], *, or_skip: bool) -> int:
    if unknown := [name for name in groups if name not in build.GROUPS]:
        raise Unavailable(f"no group {', '.join(unknown)}; there are {', '.join(build.GROUPS)}")
    try:
        for name in groups:
            build.build(name)
            downloads.fetch(name)
    except Unavailable as error:
        if not or_skip or os.environ.get("CI", "").lower() not in ("", "0", "false"):
            raise
        print(f"SKIPPED: no Kubernetes for the tests on this machine: {error}", file=sys.stderr)
    return 0


def _status(folder: Path) -> int:
    plane = ControlPlane.attach(folder)
    if plane is None:
        print(f"nothing runs in {folder}; `make cluster` starts a control plane")
        return 1
    for part in plane.parts.values():
        print(f"{part.name:24} pid {part.pid}" if part.pid else f"{part.name:24} stopped")
    ready = plane.get("/readyz") == "ok"
    print(f"{API} answers at {plane.url}" if ready else f"{API} does not answer at {plane.url}")
    _print_exports(plane.kubeconfig)
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
