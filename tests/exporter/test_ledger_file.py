"""The ledger's file: whole or kept aside, of this boot or put onto it."""

import errno
import json
import threading
import zlib

import pytest

from stoker.exporter.clock import NS
from stoker.exporter.ledger_writer import LedgerCopy, LedgerWriter
from stoker.exporter.meters import ledger_file
from stoker.exporter.meters.ledger import FORGET_S, parse, resume
from stoker.exporter.meters.snapshot import Books
from stoker.exporter.owners import Holding

from .metering import WORKING, held, meters, moment, owner, run


@pytest.fixture
def ledger():
    node = meters()
    node.allocation(held(Holding("GPU-0", owner("a"))), moment(0))
    run(node, [0, 1, 2], WORKING)
    return node.ledger


def test_it_comes_back_as_it_was(ledger, tmp_path):
    ledger_file.write(tmp_path, ledger.as_json(moment(2)))
    back = ledger_file.load(tmp_path, "node-a", moment(5), "boot-1")
    assert back.id == ledger.id and back.accounts == ledger.accounts
    assert [hold.allocated_ns for hold in back.holds] == [2 * NS]
    assert not back.holds[0].confirmed  # it is not known yet whether it goes on
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.json"]


def test_a_ledger_of_before_a_field_was_renamed_goes_on(ledger):
    ledger.holds[0].unmetered_ns = 7
    state = json.loads(ledger.as_json(moment(2)))["state"]
    for hold in state["holds"]:
        hold["told"], hold["untold_energy_ns"] = hold.pop("confirmed"), hold.pop("unmetered_ns")
    body = json.dumps(state).encode()
    back = parse(b'{"version":1,"crc32":"%08x","state":%b}\n' % (zlib.crc32(body), body))
    assert back.holds == ledger.holds


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data.replace(b"2000000000", b"2000000001", 1), id="a digit"),
        pytest.param(lambda data: b"\0" * len(data), id="zeros"),
        pytest.param(lambda data: data.replace(b'"version":1', b'"version":9'), id="another version"),
        pytest.param(lambda data: data + b"x", id="more"),
    ],
)
def test_a_damaged_file_is_kept_aside(ledger, tmp_path, damage, caplog):
    data = damage(ledger.as_json(moment(2)))
    (tmp_path / "ledger.json").write_bytes(data)
    fresh = ledger_file.load(tmp_path, "node-a", moment(5), "boot-1")
    assert fresh.id != ledger.id and not fresh.accounts and not fresh.holds
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith("ledger.json.bad-") and aside.read_bytes() == data
    assert "begin anew" in caplog.text


def test_no_other_user_reads_it_or_leads_it_elsewhere(ledger, tmp_path):
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    with ledger_file.locked(state):
        ledger_file.write(state, ledger.as_json(moment(2)))
        assert [oct(path.stat().st_mode & 0o777) for path in (state, *sorted(state.iterdir()))] == [
            "0o700",
            "0o600",
            "0o600",
        ]
        (state / "ledger.json.new").symlink_to(elsewhere)
        with pytest.raises(OSError, match="symbolic links"):
            ledger_file.write(state, b"x")
    assert not elsewhere.exists()


def test_another_nodes_ledger_is_not_ours(ledger, tmp_path):
    ledger_file.write(tmp_path, ledger.as_json(moment(2)))
    assert ledger_file.load(tmp_path, "node-b", moment(5), "boot-1").id != ledger.id


def test_another_boots_time_is_put_onto_this_ones(ledger):
    """Down for 100 s, up for 40: CLOCK_BOOTTIME says less than it did."""
    now = moment(142)._replace(mono_s=40.0)
    back = resume(parse(ledger.as_json(moment(2))), now, "boot-2")
    account = back.accounts["GPU-0"]
    assert account.accounted_ns == now.mono_ns - 140 * NS and account.energy.counter_uj == 0
    assert not account.seen


def test_a_gpu_that_went_a_month_ago_is_forgotten(ledger):
    now = moment(3 + FORGET_S)
    assert resume(parse(ledger.as_json(moment(2))), now, "boot-1").accounts == {}


def test_two_exporters_do_not_share_a_ledger(tmp_path):
    with (
        ledger_file.locked(tmp_path),
        pytest.raises(ledger_file.StateError, match="another exporter"),
        ledger_file.locked(tmp_path),
    ):
        pass


def test_a_state_folder_that_can_not_be_had(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ledger_file.StateError, match="--state"), ledger_file.locked(tmp_path / "file" / "state"):
        pass


def test_only_what_is_on_disk_is_shown_and_sent(ledger, tmp_path, monkeypatch):
    writing, go_on, sent = threading.Event(), threading.Event(), []
    write = ledger_file.write

    def slow(state, data):
        writing.set()
        assert go_on.wait(20)
        write(state, data)

    monkeypatch.setattr(ledger_file, "write", slow)
    old, new = Books(), Books({"GPU-0": {}})
    writer = LedgerWriter(tmp_path, old, sent.append)
    writer.start()
    writer.offer(LedgerCopy(ledger.as_json(moment(2)), new, ()))
    assert writing.wait(20)
    assert writer.books is old and sent == []
    go_on.set()
    assert writer.stop(20)
    assert writer.books is new and sent == [()]
    assert parse((tmp_path / "ledger.json").read_bytes()).id == ledger.id


def test_a_full_disk_is_logged_and_stops_nothing(ledger, tmp_path, monkeypatch, caplog):
    def full(state, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ledger_file, "write", full)
    new = Books({"GPU-0": {}})
    writer = LedgerWriter(tmp_path, Books(), lambda receipts: None)
    writer.start()
    writer.offer(LedgerCopy(ledger.as_json(moment(2)), new, ()))
    assert writer.stop(20) and writer.books is new
    assert "No space left" in caplog.text
