"""What a script may import inside a job: `report` shows how far it is, `Stop` says when to save and leave.

    from stoker_job import STOPPED, Stop, report

    stop = Stop()
    for step in range(done, steps):
        loss = train_step()
        report(step=step + 1, total_steps=steps, loss=loss)
        if stop.asked():
            save()
            sys.exit(STOPPED)

For frameworks: `stoker_job.transformers`, `stoker_job.lightning`, `stoker_job.accelerate`. It knows the worker's
contract (docs/worker-contract.md) and nothing else: standard library only, for any Python >= 3.8. The supervisor puts
it on the PYTHONPATH of every command, so that an image needs nothing of ours; by hand it comes with the wheel.
"""

from .progress import report
from .stopping import STOPPED, Stop

__all__ = ["STOPPED", "Stop", "report"]
