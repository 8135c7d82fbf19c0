"""The termination message's limit."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from stoker.local.agent import status
from stoker.spec.worker import Checkpoint, ExitRecord, Progress, RankExit
from tests.support.examples import examples


@examples(40)
@given(
    message=st.text(max_size=1000),
    ranks=st.integers(0, 64),
    summary=st.dictionaries(st.text(max_size=40), st.text(max_size=400), max_size=20),
    metrics=st.dictionaries(st.text(max_size=100), st.floats(allow_nan=False, allow_infinity=False), max_size=60),
)
@example(message="\N{FIRE}" * 1000, ranks=64, summary={}, metrics={})
def test_a_termination_message_fits_and_is_a_record(message, ranks, summary, metrics):
    record = ExitRecord(
        pod_uid="u" * 36,
        started_at=1.5,
        finished_at=2.5,
        stop_requested=False,
        exit_code=1,
        signal=9,
        failed_rank=63,
        failed_at=1792000000.123456,
        grace_exceeded=True,
        log_bytes=1 << 40,
        ranks=tuple(RankExit(rank=i, exit_code=1, at=1792000000.123456) for i in range(ranks)),
        message=message,
        progress=Progress(at=2.0, step=7, metrics=metrics, checkpoint=Checkpoint(step=5), summary=summary),
    )
    text = status.ended(record)["containerStatuses"][0]["state"]["terminated"]["message"]
    assert len(text.encode()) <= status.MESSAGE_MAX_BYTES
    back = ExitRecord.model_validate_json(text)
    assert (back.exit_code, back.pod_uid) == (1, record.pod_uid)
    if len(json.dumps(record.model_dump(mode="json"))) < 3000:
        assert back == record
