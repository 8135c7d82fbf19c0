"""Tokens on one machine: what the files hold, when a token stops working, writers in several processes at once."""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stoker.cli.main import cli
from stoker.store.clock import ManualClock
from stoker_api.identity import GET_METRICS
from stoker_api.token_identity import TokenIdentity
from stoker_api.tokens import KEPT_EXPIRED, TokenError, TokenFile
from tests.support.examples import examples

DAY = timedelta(days=1)
DAY_S = 86400.0


def test_the_administrators_token(tmp_path):
    tokens = TokenFile.open(tmp_path / "data")
    path = tokens.ensure_admin()
    admin = path.read_text().strip()
    assert path == tmp_path / "data" / "token"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    assert modes == {"token": 0o600, "tokens.json": 0o600, "tokens.lock": 0o600}
    assert tokens.find(admin).role == "admin" and tokens.find(admin).projects == {"*"}
    assert tokens.ensure_admin().read_text().strip() == admin, "made once"
    again = TokenFile.open(tmp_path / "data", ManualClock(datetime(2126, 1, 1, tzinfo=UTC)))
    assert again.ensure_admin().read_text().strip() == admin, "it does not expire"
    assert admin not in (tmp_path / "data" / "tokens.json").read_text()
    assert again.find("") is None and again.find(admin + "x") is None and again.find("\udcff") is None
    again.revoke("admin")
    assert tokens.find(admin) is None
    assert tokens.ensure_admin().read_text().strip() != admin
    assert tokens.find(path.read_text().strip()).role == "admin"


def test_prometheus_own_token_reads_and_no_more(tmp_path):
    tokens = TokenFile.open(tmp_path)
    admin, path = tokens.ensure_admin().read_text().strip(), tokens.ensure_scraper()
    scraper = path.read_text().strip()
    assert path == tmp_path / "scrape.token" and path.stat().st_mode & 0o777 == 0o600
    assert (tokens.find(scraper).name, tokens.find(scraper).role) == ("stoker-scrape", "reader")
    assert tokens.ensure_scraper().read_text().strip() == scraper != admin, "made once"
    assert tokens.ensure_admin().read_text().strip() == admin, "beside the administrator's"
    tokens.revoke("stoker-scrape")
    assert tokens.ensure_scraper().read_text().strip() != scraper and tokens.find(scraper) is None


async def test_metrics_are_for_tokens_of_all_projects(tmp_path):
    """They name every project's jobs and users, so no token of some projects reads them."""
    tokens = TokenFile.open(tmp_path)
    identity = TokenIdentity(tokens, b"")
    some = [tokens.add(role, role, ["vision", "speech"]) for role in ("reader", "admin")]
    for token, may in ((tokens.ensure_scraper().read_text().strip(), True), *((token, False) for token in some)):
        assert await identity.may(await identity.authenticate(token), GET_METRICS) is may


def test_a_token_expires_to_the_second(tmp_path):
    clock = ManualClock()
    tokens = TokenFile.open(tmp_path, clock)
    short, endless = tokens.add("short", "user", ["alpha"], DAY), tokens.add("endless", "user", ["alpha"])
    clock.advance(DAY_S - 1)
    assert tokens.find(short).name == "short" and not tokens.listed()[1].expired(clock.now())
    clock.advance(1)
    assert tokens.find(short) is None and tokens.find(endless).name == "endless"
    assert [(r.name, r.expired(clock.now())) for r in tokens.listed()] == [("endless", False), ("short", True)]
    with pytest.raises(TokenError, match="revoke"):
        tokens.add("short", "admin", ["*"])
    clock.advance(KEPT_EXPIRED.total_seconds())
    assert [record.name for record in tokens.listed()] == ["endless"], "listed for 30 days more"
    tokens.add("other", "user", ["alpha"])
    assert "short" not in (tmp_path / "tokens.json").read_text(), "and then written no more"
    assert tokens.add("short", "reader", ["beta"]) != short


def test_a_file_from_before_tokens_expired(tmp_path):
    token = TokenFile.open(tmp_path).add("old", "user", ["alpha"])
    data = json.loads((tmp_path / "tokens.json").read_text())
    assert set(data["tokens"][0]) == {"name", "sha256", "role", "projects", "createdAt"}
    found = TokenFile.open(tmp_path, ManualClock(datetime(2099, 1, 1, tzinfo=UTC))).find(token)
    assert (found.name, found.role, found.projects) == ("old", "user", {"alpha"})


def test_a_running_server_follows_other_processes(tmp_path):
    first, second = TokenFile.open(tmp_path), TokenFile.open(tmp_path)
    first.ensure_admin()
    token = second.add("ci", "reader", ["alpha"])
    assert first.find(token).name == "ci"
    with pytest.raises(TokenError, match="already"):
        first.add("ci", "admin", ["*"])
    file = tmp_path / "tokens.json"
    whole = file.read_text()
    file.write_text("{broken")
    assert first.find(token) is not None, "a file cut in half leaves the tokens known so far in force"
    with pytest.raises(TokenError, match="can't be read"):
        first.add("more", "user", ["alpha"])
    assert file.read_text() == "{broken", "and is not written over"
    file.write_text(whole)
    second.revoke("ci")
    assert first.find(token) is None
    with pytest.raises(TokenError, match="no token named 'ci'"):
        first.revoke("ci")
    file.unlink()
    assert first.find((tmp_path / "token").read_text().strip()) is None


def test_what_others_can_read_is_refused(tmp_path):
    TokenFile.open(tmp_path).ensure_admin()
    (tmp_path / "tokens.json").chmod(0o644)
    with pytest.raises(TokenError, match="chmod 600"):
        TokenFile.open(tmp_path)
    for name, role, projects in (("a b", "user", ["p"]), ("a", "god", ["p"]), ("a", "user", [])):
        with pytest.raises(TokenError):
            TokenFile.open(tmp_path / "fresh").add(name, role, projects)
    with pytest.raises(TokenError, match="no such token"):
        TokenFile.open(tmp_path / "fresh").add("a", "user", ["p"], timedelta.max)


def test_writers_at_once_lose_no_token(tmp_path):
    """Each with an open file of its own: to flock the same as a process of its own."""

    def write(number: int) -> str:
        tokens = TokenFile.open(tmp_path)
        passing = tokens.add(f"passing-{number}", "user", ["alpha"])
        kept = tokens.add(f"kept-{number}", "user", ["alpha"])
        tokens.revoke(f"passing-{number}")
        assert tokens.find(passing) is None
        return kept

    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(write, range(16)))
    tokens = TokenFile.open(tmp_path)
    assert [tokens.find(token).name for token in kept] == [f"kept-{number}" for number in range(16)]
    assert len(tokens.listed()) == 16


class Tokens(RuleBasedStateMachine):
    """Two processes over one folder against a dictionary: a token works from its making to its end, for both."""

    @initialize()
    def begin(self) -> None:
        self.made: dict[str, tuple[str, datetime | None]] = {}
        self.dead: list[str] = []
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.processes = [TokenFile.open(self.folder.name, self.clock) for _ in range(2)]

    @rule(who=st.integers(0, 1), name=st.sampled_from("abc"), days=st.sampled_from([None, 1, 3]))
    def add(self, who: int, name: str, days: int | None) -> None:
        ends = None if days is None else self.clock.now() + days * DAY
        old = self.made.get(name)
        if old is not None and (old[1] is None or old[1] + KEPT_EXPIRED > self.clock.now()):
            with pytest.raises(TokenError):
                self.processes[who].add(name, "user", [name])
            return
        token = self.processes[who].add(name, "user", [name], None if days is None else days * DAY)
        if old is not None:
            self.dead.append(old[0])
        self.made[name] = (token, ends)

    @rule(who=st.integers(0, 1), name=st.sampled_from("abc"))
    def revoke(self, who: int, name: str) -> None:
        try:
            self.processes[who].revoke(name)
        except TokenError:
            old = self.made.get(name)
            assert old is None or (old[1] is not None and old[1] + KEPT_EXPIRED <= self.clock.now())
        if name in self.made:
            self.dead.append(self.made.pop(name)[0])

    @rule(days=st.sampled_from([0.5, 1, 31]))
    def wait(self, days: float) -> None:
        self.clock.advance(days * DAY_S)

    @invariant()
    def exactly_the_living_are_found(self) -> None:
        for process in getattr(self, "processes", []):
            for name, (token, ends) in self.made.items():
                found = process.find(token)
                assert (found is not None) == (ends is None or self.clock.now() < ends)
                assert found is None or (found.name, found.projects) == (name, {name})
            assert [token for token in self.dead if process.find(token) is not None] == []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestTokens = Tokens.TestCase
TestTokens.settings = examples(40, stateful_step_count=15)


@pytest.fixture
def stoker(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))

    def call(*args: str):
        return CliRunner().invoke(cli, ["token", *args])

    return call


def test_the_commands(stoker, tmp_path):
    made = stoker("create", "alice", "--project", "vision", "--project", "speech")
    assert made.exit_code == 0
    token = made.stdout.strip()
    assert stoker("create", "bot", "--role", "reader", "--project", "*", "--expires", "never").exit_code == 0
    table = stoker("list").stdout
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["NAME", "ROLE", "PROJECTS", "AGE", "EXPIRES"]
    assert lines[1][:3] == ["alice", "user", "vision,speech"] and lines[1][4:] in (["in", "90d"], ["in", "89d23h"])
    assert lines[2][:3] == ["bot", "reader", "all"] and lines[2][4:] == ["never"]
    listed = json.loads(stoker("list", "-o", "json").stdout)
    assert [sorted(one) for one in listed] == [["createdAt", "expiresAt", "name", "projects", "role"]] * 2
    hashed = json.loads((tmp_path / "tokens.json").read_text())["tokens"][0]["sha256"]
    assert token not in table + str(listed) and hashed not in table + str(listed)
    assert TokenFile.open(tmp_path).find(token).projects == {"vision", "speech"}
    assert stoker("revoke", "alice", "bot").stdout == "token alice revoked\ntoken bot revoked\n"
    assert TokenFile.open(tmp_path).find(token) is None
    gone = stoker("revoke", "alice")
    assert gone.exit_code != 0 and "no token named 'alice'" in gone.output


@pytest.mark.parametrize("expires", ["0s", "soon", "", "999999999999d", "99999999d"])
def test_a_lifetime_that_is_none(stoker, tmp_path, expires):
    refused = stoker("create", "alice", "--project", "vision", "--expires", expires)
    assert refused.exit_code != 0 and not (tmp_path / "tokens.json").exists()
    assert "Traceback" not in refused.output and refused.exception is not None
    assert isinstance(refused.exception, SystemExit)


def test_an_expired_token_in_the_list(stoker, tmp_path):
    past = ManualClock(datetime.now(UTC) - 2 * DAY)
    TokenFile.open(tmp_path, past).add("late", "user", ["vision"], DAY)
    day = f"{past.now() + DAY:%Y-%m-%d}"
    assert stoker("list").stdout.splitlines()[1].split()[4:] == ["expired", day]
    assert os.listdir(tmp_path) and Path(tmp_path, "tokens.json").exists()
