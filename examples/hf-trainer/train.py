"""Hugging Face's Trainer on Stoker: a small language model from scratch, on one worker or several.

    stoker run --workers 2 --gpus 1 -- python examples/hf-trainer/train.py --steps 200

Three lines make it Stoker's: the folder of checkpoints, the callback, and what it resumes from. The model is a small
GPT-2 with random weights, the text Python's own documentation: nothing is fetched.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import pydoc_data.topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from stoker_job.transformers import StokerCallback, checkpoint_folder, last_checkpoint

CONTEXT = 64


def load_data():
    """Python's documentation as bytes, in pieces of CONTEXT + 1."""
    text = "\n".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = rows[: len(rows) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return [{"input_ids": row, "labels": row} for row in rows]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="per process")
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4))
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=checkpoint_folder(),
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            learning_rate=3e-3,
            logging_steps=5,
            save_steps=100,  # a machine can fail without asking
            save_total_limit=2,
            report_to="none",
            disable_tqdm=True,
            bf16=gpu,
            use_cpu=not gpu,
            ddp_backend="nccl" if gpu else "gloo",
            seed=1,
        ),
        train_dataset=load_data(),
        callbacks=[StokerCallback()],
    )
    resumed = last_checkpoint()
    if resumed:
        print(f"resumed from {resumed}", flush=True)
    done = trainer.train(resume_from_checkpoint=resumed)
    weights = sum(float(weight.detach().double().abs().sum()) for weight in model.parameters())
    print(f"done: step {done.global_step} weights {weights:.9f}", flush=True)


if __name__ == "__main__":
    main()
