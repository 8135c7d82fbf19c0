"""Fine-tuning with LoRA on Stoker, in a loop of your own with Accelerate; the pretrained weights come from a folder.

    stoker run --gpus 1 --data weights=./base -- python examples/lora/train.py --steps 200

Of the model only small added matrices are trained; they are what the job leaves (`adapter` in its output) and what is
saved at a stop. The text is Python's own source, the pretrained model knows its documentation.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import os
import sys
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from stoker_job import STOPPED, Stop, report
from stoker_job.accelerate import StokerTracker

CONTEXT = 64
SAVED = Path(os.environ.get("STOKER_CHECKPOINT_DIR", "checkpoints"))
OUTPUT = Path(os.environ.get("STOKER_OUTPUT_DIR", "output"))


def load_data():
    """Some of Python's own source as bytes, in pieces; the last eighth is for testing."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join((folder / name).read_bytes() for name in ("argparse.py", "inspect.py", "typing.py"))
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = rows[: len(rows) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return rows[: len(rows) * 7 // 8], rows[len(rows) * 7 // 8 :]


def newest():
    """The last checkpoint that is whole: it is renamed into place once it is written."""
    found = sorted(SAVED.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    return found[-1] if found else None


def save(accelerator, step):
    accelerator.save_state(SAVED / "new")
    if accelerator.is_main_process:
        (SAVED / "new").rename(SAVED / f"step-{step}")
        report(step, checkpoint=SAVED / f"step-{step}")
    accelerator.wait_for_everyone()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="per process")
    options = parser.parse_args()

    stop = Stop()
    accelerator = Accelerator(log_with=StokerTracker(total_steps=options.steps))
    accelerator.init_trackers("lora")
    model = AutoModelForCausalLM.from_pretrained(os.environ.get("STOKER_DATA_WEIGHTS", "base"))
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True))
    train, test = load_data()
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)

    def test_loss():
        model.eval()
        with torch.no_grad():
            rows = test[:256].to(accelerator.device)
            return model(input_ids=rows, labels=rows).loss.item()

    step = 0
    if found := newest():
        accelerator.load_state(found)
        step = int(found.name.partition("-")[2])
        print(f"resumed from {found}", flush=True)
    else:
        accelerator.print(f"before: test loss {test_loss():.4f}", flush=True)
    model.train()
    while step < options.steps:
        # Which rows a step takes depends on the step alone: a resumed run takes the same.
        order = torch.Generator().manual_seed(step * accelerator.num_processes + accelerator.process_index)
        rows = train[torch.randint(len(train), (options.batch,), generator=order)].to(accelerator.device)
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        accelerator.log({"loss": loss}, step=step)
        asked = stop.asked()
        if asked or step % 100 == 0:
            save(accelerator, step)
        if asked:
            sys.exit(STOPPED)
    loss = test_loss()
    accelerator.log({"test/loss": loss}, step=step)
    accelerator.unwrap_model(model).save_pretrained(OUTPUT / "adapter")
    accelerator.print(f"done: step {step} test loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
