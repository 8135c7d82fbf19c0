"""What of this machine reaches a build, and what is asked of it before one."""

from __future__ import annotations

import json

import pytest

from tools.images import RECIPES, NotEnoughDisk, ensure, machine
from tools.images.ensuring import Image


def test_a_mirror_is_passed_on_without_this_machines_paths(tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://mirror.example/simple\ncert = /home/me/ca.pem\nfind-links = /wheels\n"
    )
    said = machine.pip_config({"PIP_TIMEOUT": "60", "PIP_CERT": "/home/me/ca.pem"}, (str(file),))
    assert "index-url = https://mirror.example/simple" in said and "timeout = 60" in said
    assert "/home/me" not in said and "/wheels" not in said


def test_the_environment_comes_before_the_file(tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://a.example/simple\n")
    env = {"PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "https://b.example/simple"}
    assert "https://b.example" in machine.pip_config(env, ()) and "a.example" not in machine.pip_config(env, ())


def test_an_apt_mirror_is_used_only_where_one_is_named():
    assert machine.apt_sources("trixie", {}) is None
    env = {"STOKER_APT_MIRROR": "http://mirror.example/debian"}
    assert machine.apt_sources("trixie", env) == "deb http://mirror.example/debian trixie main\n"


def test_too_little_disk_is_reported_before_anything_is_built(tmp_path):
    with pytest.raises(NotEnoughDisk, match=r"trainer-cuda needs 1000000\.0 GB .* tools\.images prune"):
        machine.require_disk("trainer-cuda", 10**15, tmp_path / "not" / "yet" / "made")
    machine.require_disk("anything", 1, tmp_path)


def test_a_missing_tool_is_named_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(machine.Missing, match="apt-get install buildah mmdebstrap"):
        machine.require("buildah", "mmdebstrap")


@pytest.mark.parametrize("name", list(RECIPES))
def test_what_was_built_from_these_inputs_needs_no_builder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    reference = RECIPES[name].reference()
    folder = tmp_path / "images"
    folder.mkdir()
    archive = folder / f"{name}-{reference.rpartition(':')[2]}.tar"
    archive.write_bytes(b"")
    archive.with_suffix(".json").write_text(json.dumps({"build_s": 1}))
    assert ensure(name) == Image(reference, archive)
    assert ensure(name).figures() == {"build_s": 1}


def test_a_half_written_archive_does_not_count(tmp_path, monkeypatch):
    """The figures are written last."""
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    digest = RECIPES["control-plane"].digest()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / f"control-plane-{digest}.tar").write_bytes(b"")
    with pytest.raises(machine.Missing):
        ensure("control-plane")
