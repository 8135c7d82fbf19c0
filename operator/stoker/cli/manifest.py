"""Job files: YAML as people write it, and where in the file each thing stands.

Owns reading, `--set` and the way from a JSON pointer to a line. Knows nothing of what a job may hold: the server checks
that, and its pointers are shown with the file's lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stoker.client.errors import ApiError, BadInput
from stoker.spec.names import GROUP

_STEM = 40
"""Of a name that gets an end: the most letters that it keeps."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: `on`, `no` and 1:30 are strings, 3e-3 is a number. Twice the same key is an error."""

    yaml_implicit_resolvers = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise BadInput(f"line {line}: a field's name must be plain text")
            if key.value in seen:
                raise BadInput(f"line {line}: {key.value!r} is given twice (first in line {seen[key.value]})")
            seen[key.value] = line
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value)  # YAML 1.1 would read 010 as eight


_Loader.add_constructor("tag:yaml.org,2002:int", _int)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One document of a file. `lines`: JSON pointer → line, counted from 1."""

    source: str
    body: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def where(self, pointer: str) -> str:
        """A pointer as people write it, with the nearest line that is known: 'spec.gpu.minMemory (job.yaml:7)'."""
        path = pointer.strip("/").replace("/", ".").replace("~1", "/").replace("~0", "~")
        known = pointer
        while known and known not in self.lines:
            known = known.rpartition("/")[0]
        line = self.lines.get(known)
        return f"{path or 'the document'} ({self.source}:{line})" if line else path or self.source

    def explain(self, error: ApiError) -> str:
        """A refusal in terms of the file: one line per fault."""
        if not error.errors:
            return str(error)
        return "\n".join(f"{self.where(fault.pointer)}: {fault.detail}" for fault in error.errors)


def read_manifests(path: str) -> list[Manifest]:
    """The documents of a file, at least one; '-' reads standard input. Raises: BadInput."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a text file") from None
    return parse_manifests(text, "stdin" if path == "-" else path)


def parse_manifests(text: str, source: str) -> list[Manifest]:
    """The documents in `text`. Raises: BadInput naming the line."""
    loader = _Loader(text)
    found: list[Manifest] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            body = loader.construct_document(node)
            if body is None:
                continue
            if not isinstance(body, dict) or "spec" not in body:
                raise BadInput("a job file has the fields apiVersion, kind, metadata and spec; see examples/")
            lines: dict[str, int] = {}
            _note_lines(node, "", lines)
            found.append(Manifest(source, _submittable(body), lines))
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{source}{line}: {error.problem or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{source}: not YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()
    if not found:
        raise BadInput(f"{source} is empty")
    return found


def _submittable(body: dict[str, Any]) -> dict[str, Any]:
    """What `stoker get -o yaml` printed, as a job like it: without what the server wrote, with a name made from its."""
    metadata, spec = body.get("metadata"), body["spec"]
    if not isinstance(metadata, dict) or "uid" not in metadata or not isinstance(spec, dict):
        return body
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if GROUP not in key.partition("/")[0]}
    return {
        **{key: value for key, value in body.items() if key != "status"},
        "metadata": {"generateName": f"{str(metadata.get('name', 'job'))[:_STEM]}-", "labels": labels},
        "spec": {key: value for key, value in spec.items() if key not in ("suspend", "cancel", "retryGeneration")},
    }


def override(body: dict[str, Any], assignment: str) -> None:
    """Carry out one `--set spec.path=value`; the value is read as YAML. Raises: BadInput."""
    path, equals, text = assignment.partition("=")
    keys = path.split(".")
    if not equals or not all(keys) or keys[0] not in {"spec", "metadata"} or len(keys) < 2:
        raise BadInput(f"--set {assignment}: write --set spec.path=value, for example spec.stop.maxDuration=10m")
    try:
        value = yaml.load(text, _Loader)  # a safe loader of our own
    except yaml.YAMLError:
        value = text
    at: Any = body
    for number, key in enumerate(keys[:-1]):
        below = at[_index(at, key, assignment)] if isinstance(at, list) else at.setdefault(key, {})
        if below is None:
            below = at[key] = {}
        if not isinstance(below, dict | list):
            raise BadInput(f"--set {assignment}: {'.'.join(keys[: number + 1])} holds {below!r} and has no parts")
        at = below
    if isinstance(at, list):
        at[_index(at, keys[-1], assignment)] = value
    else:
        at[keys[-1]] = value


def _index(items: list[Any], key: str, assignment: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise BadInput(f"--set {assignment}: {key} is not an index of a list of {len(items)}")
    return int(key)


def _note_lines(node: yaml.Node, pointer: str, lines: dict[str, int]) -> None:
    lines.setdefault(pointer, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = key.value.replace("~", "~0").replace("/", "~1")
            lines[f"{pointer}/{name}"] = key.start_mark.line + 1
            _note_lines(value, f"{pointer}/{name}", lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _note_lines(value, f"{pointer}/{number}", lines)
