"""A receipt as the exporter writes it (plain, no pydantic) against the model the api reads it with: field by field,
both ways; and the bounds that both sides must know."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.exporter.receipts import IDLE_CLASSES, THROTTLE_REASONS, Receipt, _camel
from stoker.exporter.reporting.outbox import MAX_RECEIPTS as EXPORTER_MAX_RECEIPTS
from stoker.spec import usage
from stoker.spec.usage import MAX_RECEIPTS, GpuReceipt
from stoker.spec.worker import MAX_UNIX_S

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63)
SECONDS = st.floats(0, 1e9)
MOMENT = st.floats(0, MAX_UNIX_S)
BYTES = st.integers(0, 1 << 40)
MADE: dict[str, st.SearchStrategy[Any]] = {
    "ledger": NAMES,
    "node": NAMES,
    "uuid": NAMES,
    "job_uid": NAMES,
    "attempt": st.integers(0, 1000),
    "worker": st.integers(0, 1000),
    "project": NAMES,
    "job_name": NAMES,
    "pod_uid": NAMES,
    "model": NAMES,
    "seq": st.integers(0, 1 << 40),
    "begin_at": MOMENT,
    "at": MOMENT,
    "final": st.booleans(),
    "allocated_s": SECONDS,
    "unobserved_s": SECONDS,
    "busy_s": st.none() | SECONDS,
    "sm_active_s": st.none() | SECONDS,
    "tensor_active_s": st.none() | SECONDS,
    "dram_active_s": st.none() | SECONDS,
    "idle_s": st.dictionaries(st.sampled_from(IDLE_CLASSES), SECONDS),
    "throttled_s": st.dictionaries(st.sampled_from(THROTTLE_REASONS), SECONDS),
    "energy_j": st.none() | SECONDS,
    "unobserved_energy_j": SECONDS,
    "method": st.sampled_from(["exclusive", "even", "mig_slices"]),
    "memory_peak_bytes": st.none() | BYTES,
    "memory_total_bytes": st.none() | BYTES,
    "idle_since": st.none() | MOMENT,
    "simulated": st.booleans(),
}


def test_both_have_the_same_fields_in_the_same_order():
    assert [field.name for field in dataclasses.fields(Receipt)] == list(GpuReceipt.model_fields) == list(MADE)


def test_both_write_the_same_names():
    assert [_camel(field.name) for field in dataclasses.fields(Receipt)] == [
        field.alias or name for name, field in GpuReceipt.model_fields.items()
    ]


def test_what_may_be_absent_is_the_same():
    """A field that the exporter leaves out has the same default where it is read; one that it never leaves out needs
    none."""
    types_of = typing.get_type_hints(Receipt)
    for field in dataclasses.fields(Receipt):
        model = GpuReceipt.model_fields[field.name]
        kinds = typing.get_args(types_of[field.name])
        optional = isinstance(types_of[field.name], types.UnionType) and types.NoneType in kinds
        assert optional == (model.default is None), field.name
        if field.default is not dataclasses.MISSING:
            assert model.default == field.default, field.name


def test_both_agree_on_how_many_go_together():
    assert EXPORTER_MAX_RECEIPTS == MAX_RECEIPTS


@given(st.fixed_dictionaries(MADE))
def test_every_receipt_is_read_as_it_was_meant_and_written_back_the_same(fields):
    receipt = Receipt(**fields)
    written = receipt.as_json()
    read = GpuReceipt.model_validate(written)
    assert {name: getattr(read, name) for name in GpuReceipt.model_fields} == fields
    assert read.model_dump(by_alias=True, exclude_none=True) == written


def test_both_sides_know_the_same_reasons_of_throttling():
    assert usage.THROTTLE_REASONS == THROTTLE_REASONS
