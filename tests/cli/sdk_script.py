"""A script as a user of the SDK writes it: `make lint` checks its types strictly, tests/cli/test_sdk.py runs it."""

from __future__ import annotations

import sys

from stoker import Client, Job, JobChanged, JobFailed


def losses(job: Job) -> dict[int, float]:
    """Step → loss."""
    columns = job.metrics("loss").columns()
    return dict(zip(columns["step"], columns["value"], strict=True))


def main(server: str, token: str, folder: str) -> None:
    with Client(server, token) as stoker:
        job = stoker.run(["python", "train.py"], code=folder, cpu="500m", memory="256Mi", env={"STEPS": "3"})
        seen = [update.job.status.phase for update in job.events() if isinstance(update, JobChanged)]
        done = job.wait(timeout=60)
        print(done, seen[-1] == done.status.phase)
        print("".join(chunk.text for chunk in done.logs()), end="")
        print(losses(done))
        print([file.path for file in done.files().items], done.cp("model.txt", folder))
        failing: Job = done.clone({"env": {"STEPS": "none"}})
        try:
            failing.wait(timeout=60)
        except JobFailed as failed:
            print(failed, failed.job.why().hints[-1].code)


if __name__ == "__main__":
    main(*sys.argv[1:])
