"""An image's digest follows its inputs and nothing else, and the Dockerfiles copy nothing that is not an input."""

from __future__ import annotations

import re
import shutil

import pytest

from tools.images import catalogue, requirements
from tools.images.catalogue import RECIPES, ROOT

OURS = [name for name, recipe in RECIPES.items() if recipe.inputs]


@pytest.fixture
def tree(tmp_path):
    """A copy of what the control plane's image is made of."""
    RECIPES["control-plane"].snapshot(tmp_path)
    return tmp_path


def test_a_copy_has_the_same_digest_whatever_its_times(tree):
    assert RECIPES["control-plane"].digest(tree) == RECIPES["control-plane"].digest()


@pytest.mark.parametrize("change", ["content", "new file", "mode", "name"])
def test_any_change_of_an_input_changes_the_digest(tree, change):
    before = RECIPES["control-plane"].digest(tree)
    path = tree / "operator/stoker/spec/job.py"
    if change == "content":
        path.write_text(path.read_text() + "\n")
    elif change == "new file":
        (path.parent / "another.py").write_text("")
    elif change == "mode":
        path.chmod(0o755)
    else:
        path.rename(path.with_name("jobs.py"))
    assert RECIPES["control-plane"].digest(tree) != before


def test_bytecode_and_other_rooms_leave_it(tree):
    before = RECIPES["control-plane"].digest(tree)
    cached = tree / "operator/stoker/spec/__pycache__"
    cached.mkdir()
    (cached / "job.cpython-313.pyc").write_bytes(b"x")
    (tree / "tests").mkdir()
    (tree / "tests/test_x.py").write_text("")
    assert RECIPES["control-plane"].digest(tree) == before


def test_a_trainer_does_not_change_with_the_operator(tree):
    shutil.copytree(ROOT / "trainer-image", tree / "trainer-image", dirs_exist_ok=True)
    before = RECIPES["trainer-cpu"].digest(tree)
    (tree / "operator/stoker/spec/job.py").write_text("")
    assert RECIPES["trainer-cpu"].digest(tree) == before
    (tree / "trainer-image/stoker_trainer/step.py").write_text("")
    assert RECIPES["trainer-cpu"].digest(tree) != before


def test_another_base_is_another_image(monkeypatch):
    before = RECIPES["trainer-cpu"].digest(), RECIPES["foreign-busybox"].digest()
    monkeypatch.setenv(catalogue.BASE_FROM_REGISTRY, "registry.example/debian:trixie-slim")
    assert RECIPES["trainer-cpu"].digest() != before[0]
    assert RECIPES["foreign-busybox"].digest() == before[1]
    assert catalogue.base_reference() == "registry.example/debian:trixie-slim"


@pytest.mark.parametrize("name", OURS)
def test_what_a_dockerfile_copies_is_an_input_and_in_the_context(name):
    recipe = RECIPES[name]
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore.count("*") == 1
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / recipe.dockerfile).read_text(), re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert sources
    for source in sources:
        assert source in recipe.inputs, f"{source} is copied but does not count for the digest"
        assert f"!{source}" in ignore, f"{source} is copied but not in the build context"


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "trainer-image/Dockerfile"])
def test_the_dockerfiles_name_no_mirror_and_end_without_root(dockerfile):
    text = (ROOT / dockerfile).read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    final = [stage for stage in stages if "LABEL" in stage]
    assert final and all("USER 65532:65532" in stage for stage in final)
    assert not re.search(r"https?://(?!github\.com/stoker-dev)", text)
    assert "ENV PIP" not in text and "ARG PIP_INDEX" not in text


def test_extras_are_followed():
    project = {
        "name": "thing",
        "dependencies": ["a"],
        "optional-dependencies": {"all": ["thing[x,y]"], "x": ["b>=1"], "y": ["thing[x]", "c"]},
    }
    assert requirements.requirements(project, ["all"]) == ["a", "b>=1", "c"]
    assert requirements.requirements(project | {"dependencies": []}, ["x"]) == ["b>=1"]
