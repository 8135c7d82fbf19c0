"""The same few numbers to TensorBoard, Weights & Biases or MLflow, beside Stoker's own curves.

    stoker run -- python examples/trackers/train.py --to tensorboard

What is resumed goes on in the same run: its id is the job's, which no attempt changes. All is written below the job's
output folder; where a server is set (WANDB_API_KEY, MLFLOW_TRACKING_URI) it goes there.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from stoker_job import STOPPED, Stop, report

OUTPUT = Path(os.environ.get("STOKER_OUTPUT_DIR", "output"))
JOB, UID = os.environ.get("STOKER_JOB", "by-hand"), os.environ.get("STOKER_JOB_UID", "by-hand")


def tensorboard():
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(OUTPUT / "tensorboard", flush_secs=5)
    return lambda step, loss: writer.add_scalar("loss", loss, step)


def wandb():
    import wandb

    mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
    run = wandb.init(project="mine", name=JOB, id=UID, resume="allow", mode=mode, dir=OUTPUT)
    return lambda step, loss: run.log({"loss": loss}, step=step)


def mlflow():
    import mlflow

    OUTPUT.mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{OUTPUT}/mlflow.db"))
    mlflow.set_experiment("mine")
    mine = mlflow.search_runs(filter_string=f"tags.stoker_job_uid = '{UID}'", output_format="list")
    mlflow.start_run(run_id=mine[0].info.run_id if mine else None, run_name=JOB, tags={"stoker_job_uid": UID})
    return lambda step, loss: mlflow.log_metric("loss", loss, step=step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", choices=("tensorboard", "wandb", "mlflow"), required=True)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()

    stop = Stop()
    log = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}[options.to]()
    for step in range(1, options.steps + 1):
        loss = 1 / step
        log(step, loss)
        report(step, total_steps=options.steps, loss=loss)
        if stop.asked():
            sys.exit(STOPPED)
        time.sleep(0.1)  # stands for the training


if __name__ == "__main__":
    main()
