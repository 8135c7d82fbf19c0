"""What comes in a wave: a few in each round of the loop, probes of health before all."""

from __future__ import annotations

import asyncio
from collections import Counter

from stoker_api.middleware.limits import Starts


async def test_a_wave_of_requests_starts_a_few_at_a_time():
    started: list[tuple[int, str]] = []
    rounds = 0

    async def app(scope, _receive, _send):
        started.append((rounds, scope["path"]))

    starts = Starts(app)
    wave = ["/v1/queues", "/v1/projects/a/jobs/b/logs"] * 20 + ["/livez"]
    tasks = [asyncio.create_task(starts({"type": "http", "path": path}, None, None)) for path in wave]
    gone = tasks[10:20]
    while not all(task.done() for task in tasks):
        rounds += 1
        await asyncio.sleep(0)
        if rounds == 1:
            for task in gone:  # their peers went away: they hold up none behind them
                task.cancel()
    assert len(started) == len(wave) - len(gone)
    each = Counter((number, path) for number, path in started)
    assert each[1, "/livez"] == 1, "health never waits"
    assert max(Counter(number for number, path in started if path != "/livez").values()) <= 4
    assert max(count for (_, path), count in each.items() if path.endswith("/logs")) == 1
    others, streams = ([number for number, path in started if path.endswith(end)] for end in ("/queues", "/logs"))
    assert max(others) < max(streams), "others do not wait for streams"
