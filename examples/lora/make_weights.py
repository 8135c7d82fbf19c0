"""A stand-in for a pretrained model: a folder with a small GPT-2, trained for a minute on Python's documentation.

    python examples/lora/make_weights.py base

A real one is fetched once, where there is a network: `hf download ORGANISATION/MODEL --local-dir base`.
"""

# ruff: noqa: T201 (a script prints)

import pydoc_data.topics
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT, BATCH, STEPS = 64, 32, 120


def main(folder):
    torch.manual_seed(1)
    text = "\n".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = rows[: len(rows) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        batch = rows[torch.randint(len(rows), (BATCH,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    print(f"{folder}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
