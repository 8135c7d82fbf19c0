"""What there is of CUDA here for a burn-in, as a sitecustomize.py: the host, under the names of the GPUs it got."""

TORCH_WITH_A_GPU = """
import os, sys
if "stoker_trainer.burn_in" in sys.orig_argv:
    import torch
    from types import SimpleNamespace
    names = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ["NVIDIA_VISIBLE_DEVICES"]
    host, leased = torch.device("cpu"), names.split(",")
    torch.cuda.device_count = lambda: len(leased)
    torch.cuda.get_device_properties = lambda number: SimpleNamespace(uuid=leased[number].removeprefix("GPU-"))
    torch.device = lambda *named: host
    whole = torch.empty
    torch.empty = lambda size, **how: whole(min(size, 1 << 18), **how)  # of its memory a little will do
"""
