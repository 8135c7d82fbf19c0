"""The requirements of some of Stoker's extras, one per line: what an image installs before Stoker itself.

Run by the Dockerfiles (`requirements.py cluster`) in a stage of its own: the layer that installs the result is built
again only when the result differs, not whenever pyproject.toml does.
"""

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Without extras: the bare install's and those of `extras`, with `stoker[a,b]` followed to what it names."""
    found = set(project["dependencies"])
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for line in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{re.escape(project['name'])}\[(.+)\]", line)
            if own:
                waiting += [name.strip() for name in own[1].split(",")]
            else:
                found.add(line)
    return sorted(found)


def main() -> None:
    args = sys.argv[1:]
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    if args and args[0] == "--only":  # the extras alone: a trainer needs no client
        project["dependencies"] = []
        args = args[1:]
    sys.stdout.write("\n".join(requirements(project, args)) + "\n")


if __name__ == "__main__":
    main()
