"""`python -m tools.images`: build, show, prune and check the project's images."""

from __future__ import annotations

import argparse
import sys

from . import building, ensuring, machine
from .catalogue import RECIPES
from .checking import check_images
from .trainer_tests import trainer_tests


def main() -> int:
    parser = argparse.ArgumentParser(prog="images", description="Stoker's container images, without a registry.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build what changed; prints name and archive of each")
    build.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    check = commands.add_parser("check", help="start images under runc: not root, read-only root, no capabilities")
    check.add_argument("names", nargs="*", metavar="NAME")
    tests = commands.add_parser("trainer-tests", help="the trainer's tests in its CPU image, on Debian's torch")
    tests.add_argument("options", nargs=argparse.REMAINDER, help="for pytest; default /repo/tests/trainer")
    commands.add_parser("prune", help="remove layers of older builds from buildah's storage")
    args = parser.parse_args()
    unknown = [name for name in getattr(args, "names", ()) if name not in RECIPES]
    if unknown:
        parser.error(f"no image {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    try:
        if args.command == "prune":
            building.prune()
        elif args.command == "trainer-tests":
            return trainer_tests(args.options)
        elif args.command == "check":
            return check_images(args.names or ["control-plane", "trainer-cpu", "trainer-cuda"])
        else:
            for name in args.names or ["control-plane", "trainer-cpu"]:
                image = ensuring.ensure(name, log=lambda line: print(line, file=sys.stderr, flush=True))
                print(image.name, image.archive)
    except (ensuring.BuildFailed, building.CommandFailed, machine.Missing, machine.NotEnoughDisk) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
