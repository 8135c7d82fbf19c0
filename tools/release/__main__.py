"""`python -m tools.release`: makes a release, or verifies one. What `make release` calls."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools import images
from tools.release import making, source, verifying
from tools.release.errors import Refused


def main(argv: list[str]) -> int:
    try:
        return _verify(argv[1:]) if argv[:1] == ["verify"] else _make(argv)
    except (Refused, images.BuildFailed, images.Missing, images.NotEnoughDisk) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1


def _make(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="release",
        description="Wheel, sdist, images, chart, SBOMs and checksums in dist/<version>/.",
        epilog="`release verify dist/VERSION` says whether a release is whole.",
    )
    parser.add_argument("--version", default="", help="instead of operator/stoker/__init__.py's, in the release only")
    parser.add_argument("--only", default=",".join(making.PARTS), metavar="PARTS", help="of wheel,chart,images")
    parser.add_argument("--cuda", action="store_true", help="the CUDA trainer too (30 GB of free disk)")
    parser.add_argument("--dirty", action="store_true", help="of files that differ from the commit")
    parser.add_argument("--out", type=Path, default=source.ROOT / "dist", help="instead of dist")
    asked = parser.parse_args(argv)
    parts = tuple(dict.fromkeys(filter(None, asked.only.split(","))))
    if unknown := [part for part in parts if part not in making.PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(making.PARTS)}")
    started = time.monotonic()
    options = making.Options(asked.version, parts, asked.cuda, asked.dirty, asked.out)
    folder = making.make(options, log=lambda line: print(line, file=sys.stderr, flush=True))
    print(f"made in {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(folder)
    return 0


def _verify(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="release verify", description="Whether a release is whole and fits together.")
    parser.add_argument("folder", type=Path, help="such as dist/0.1.0")
    folder = parser.parse_args(argv).folder
    found = verifying.problems(folder, log=print)
    for problem in found:
        print(f"WRONG {problem}")
    print(f"{folder}: {'may be published' if not found else f'{len(found)} problems'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
