"""Policy-gradient reinforcement learning on Stoker: a pole is kept upright on a cart, by REINFORCE with a baseline.

    stoker run --gpus 1 -- python examples/reinforcement/train.py --updates 150

The world is a few lines of mechanics for many carts at once; nothing is needed but torch. It resumes exactly: what is
saved holds the weights, the optimizer and the generator of random numbers.
"""

# ruff: noqa: T201 (a script prints)

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import nn

from stoker_job import STOPPED, Stop, report

SAVED = Path(os.environ.get("STOKER_CHECKPOINT_DIR", "checkpoints"), "last.pt")
CARTS, LONGEST = 64, 200
GRAVITY, FORCE, DT = 9.8, 10.0, 0.02
CART_KG, POLE_KG, POLE_M = 1.0, 0.1, 0.5  # POLE_M: half of its length
EDGE_M, TILT = 2.4, 0.21


def push(state, right):
    """The carts a moment later: place, speed, angle, angular speed of each. Source: Barto, Sutton, Anderson, 1983."""
    x, v, angle, spin = state.unbind(1)
    force = torch.where(right, FORCE, -FORCE)
    sin, cos = angle.sin(), angle.cos()
    mass = CART_KG + POLE_KG
    pull = (force + POLE_KG * POLE_M * spin**2 * sin) / mass
    spin_change = (GRAVITY * sin - cos * pull) / (POLE_M * (4 / 3 - POLE_KG * cos**2 / mass))
    v_change = pull - POLE_KG * POLE_M * spin_change * cos / mass
    return torch.stack([x + DT * v, v + DT * v_change, angle + DT * spin, spin + DT * spin_change], 1)


def play(policy, value, random):
    """One game on each cart: what was done, how it was rated, and for how long each pole stood."""
    state = (torch.rand(CARTS, 4, generator=random) - 0.5) * 0.1
    up = torch.ones(CARTS, dtype=torch.bool)
    chances, values, standing = [], [], []
    for _ in range(LONGEST):
        odds = policy(state).squeeze(1)
        right = torch.rand(CARTS, generator=random) < odds.detach().sigmoid()
        chances.append(nn.functional.logsigmoid(torch.where(right, odds, -odds)))
        values.append(value(state).squeeze(1))
        standing.append(up)
        state = push(state, right)
        up = up & (state[:, 0].abs() < EDGE_M) & (state[:, 2].abs() < TILT)
        if not up.any():
            break
    return torch.stack(chances), torch.stack(values), torch.stack(standing).float()


def net():
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def save(state):
    """All or nothing: a kill in the middle leaves the older file in place."""
    SAVED.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, SAVED.with_suffix(".new"))
    SAVED.with_suffix(".new").replace(SAVED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--lr", type=float, default=1e-2)
    options = parser.parse_args()

    stop = Stop()
    torch.manual_seed(1)
    random = torch.Generator().manual_seed(1)
    policy, value = net(), net()
    nets = nn.ModuleList([policy, value])
    optimizer = torch.optim.Adam(nets.parameters(), lr=options.lr)
    update, mean_steps = 0, 0.0
    if SAVED.exists():
        state = torch.load(SAVED, weights_only=True)
        nets.load_state_dict(state["nets"])
        optimizer.load_state_dict(state["optimizer"])
        random.set_state(state["random"])
        update = state["update"]
        print(f"resumed after update {update}", flush=True)

    while update < options.updates:
        chances, values, standing = play(policy, value, random)
        rewards, returns = standing, torch.zeros_like(standing)
        after = torch.zeros(CARTS)
        for t in reversed(range(len(rewards))):
            after = returns[t] = rewards[t] + 0.99 * after
        gain = (returns - values.detach() * 100)[standing.bool()]  # values: in hundreds of steps
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        policy_loss = -(chances[standing.bool()] * gain).mean()
        value_loss = nn.functional.mse_loss(values[standing.bool()], returns[standing.bool()] / 100)
        optimizer.zero_grad()
        (policy_loss + value_loss).backward()
        optimizer.step()
        update += 1
        mean_steps = standing.sum(0).mean().item()
        report(update, total_steps=options.updates, meanReward=mean_steps, valueLoss=value_loss)
        if update % 25 == 0:
            print(f"update {update}/{options.updates}  a pole stands for {mean_steps:.1f} steps", flush=True)
        asked = stop.asked()
        if asked or update % 50 == 0 or update == options.updates:
            save({
                "update": update,
                "nets": nets.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": random.get_state(),
            })  # fmt: skip
            report(update, checkpoint=SAVED)
        if asked:
            sys.exit(STOPPED)
    weights = sum(float(weight.detach().double().abs().sum()) for weight in nets.parameters())
    print(f"done: update {update} mean reward {mean_steps:.1f} weights {weights:.9f}", flush=True)


if __name__ == "__main__":
    main()
