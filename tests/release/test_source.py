"""A release is made of a commit's files; a dirty tree or a chart of another version is refused and says what to do."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from tools.release import source
from tools.release.errors import Refused

from .conftest import commit_all, git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """As little of a checkout as has a version."""
    root = tmp_path / "repository"
    for name, text in {
        source.VERSION_FILE: '"""Stoker."""\n\n__version__ = "0.4.0"\n',
        f"{source.CHART}/Chart.yaml": 'name: stoker\nversion: 0.4.0\nappVersion: "0.4.0"\n',
        ".gitignore": "ignored\n",
        "run.sh": "#!/bin/sh\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "run.sh").chmod(0o755)
    commit_all(root)
    (root / "ignored").write_text("secret")
    return root


def take(repository: Path, **options: object) -> source.Source:
    into = repository.parent / "taken"
    into.mkdir()
    return source.take(into, root=repository, **options)  # type: ignore[arg-type]


def chart_of(taken: source.Source) -> tuple[str, str]:
    chart = yaml.safe_load((taken.root / source.CHART / "Chart.yaml").read_text())
    return chart["version"], chart["appVersion"]


def test_a_clean_tree_gives_the_commits_files(repository: Path) -> None:
    taken = take(repository)
    assert str(taken.version) == "0.4.0" and len(taken.commit) == 40
    assert taken.epoch == 1767323046  # 2026-01-02T03:04:06Z
    assert not (taken.root / "ignored").exists()
    modes = {stat.S_IMODE((taken.root / name).stat().st_mode) for name in ("run.sh", source.VERSION_FILE)}
    assert modes == {0o755, 0o644}
    assert (taken.root / "run.sh").stat().st_mtime == taken.epoch


@pytest.mark.parametrize("change", ["edited", "new", "deleted"])
def test_a_dirty_tree_is_refused(repository: Path, change: str) -> None:
    if change == "edited":
        (repository / "run.sh").write_text("#!/bin/sh\necho\n")
    elif change == "new":
        (repository / "run.py").write_text("")
    else:
        (repository / "run.sh").unlink()
    with pytest.raises(Refused, match=r"1 files differ from the commit \(run\.(sh|py)\): commit them, or pass --dirty"):
        take(repository)


def test_a_dirty_tree_that_is_wanted_says_so_in_its_version(repository: Path) -> None:
    (repository / "new.py").write_text("")
    (repository / "run.sh").unlink()
    taken = take(repository, allow_dirty=True)
    assert str(taken.version) == "0.4.0+dirty" and taken.commit.endswith("-dirty")
    assert (taken.root / "new.py").exists() and not (taken.root / "run.sh").exists()
    assert not (taken.root / "ignored").exists()
    assert chart_of(taken) == ("0.4.0+dirty", "0.4.0_dirty")


def test_a_clean_tree_is_not_called_dirty_because_it_might_be(repository: Path) -> None:
    assert str(take(repository, allow_dirty=True).version) == "0.4.0"


def test_another_version_is_written_into_the_copy_only(repository: Path) -> None:
    taken = take(repository, version="0.5.1rc1")
    assert source.own_version(taken.root) == taken.version and str(taken.version) == "0.5.1rc1"
    assert chart_of(taken) == ("0.5.1-rc.1", "0.5.1rc1")
    assert str(source.own_version(repository)) == "0.4.0"


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_a_chart_of_another_version_is_refused(repository: Path, field: str) -> None:
    chart = repository / source.CHART / "Chart.yaml"
    kept = [line for line in chart.read_text().splitlines() if not line.startswith(f"{field}:")]
    chart.write_text("\n".join([*kept, f'{field}: "0.3.9"', ""]))
    git(repository, "commit", "-q", "-a", "-m", "chart")
    with pytest.raises(Refused, match=r"Chart.yaml has .*0\.3\.9.*wants 0\.4\.0.*python -m tools\.chart"):
        take(repository)


def test_a_version_that_can_not_be_spelt_is_refused(repository: Path) -> None:
    with pytest.raises(Refused, match="post-release"):
        take(repository, version="0.5.1.post1")


def test_this_checkouts_chart_is_of_the_codes_version() -> None:
    source.check_chart(source.ROOT, source.own_version(source.ROOT))


def test_outside_of_git_there_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a release is made in a git checkout"):
        source.take(tmp_path / "into", root=tmp_path)
