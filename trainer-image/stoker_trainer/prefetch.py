"""Owns rows that do not fit into the device's memory: a thread gathers those of the next step while this one computes.
Used by sources.

On CUDA they go through pinned memory and a stream of their own, and the device waits by an event: the step's thread
waits for a copy only where the thread is behind.
Legend: B samples.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

_Copy = tuple[torch.Tensor, "torch.cuda.Event | None"]
_RESIDENT_SHARE = 0.5  # of the memory there is; the model needs the rest


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes of data may stay in the device's memory (on the CPU: in the cache of mapped files)."""
    if device.type == "cuda":
        return bool(size <= torch.cuda.mem_get_info(device)[0] * _RESIDENT_SHARE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no cgroup of our own, or "max"
        pass
    return size <= memory * _RESIDENT_SHARE


class Prefetched:
    """Rows of a mapped array, on the device. Shape: array [rows, …]; samples [B] are places in `order`."""

    def __init__(self, array: torch.Tensor, order: torch.Tensor, device: torch.device) -> None:
        self._array, self._order, self._device = array, order, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        # This step's and the next one's; the samples are held, so no other tensor can lie where they do.
        self._ahead: deque[tuple[torch.Tensor, Future[_Copy]]] = deque(maxlen=2)

    def expect(self, samples_B: torch.Tensor) -> None:
        """Begins to fetch what `take` will be asked for, whole or in parts of `samples_B` (views of it)."""
        ready = torch.cuda.Event() if self._stream is not None else None
        if ready is not None:
            ready.record()
        self._ahead.append((samples_B, self._thread.submit(self._fetch, samples_B, ready)))

    def take(self, samples_B: torch.Tensor) -> torch.Tensor:
        """The rows of these samples, fetched now where they were not expected. Shape: [B, …]."""
        for expected_B, fetching in self._ahead:
            start = (samples_B.data_ptr() - expected_B.data_ptr()) // samples_B.element_size()
            if 0 <= start <= len(expected_B) - len(samples_B):
                return _settled(fetching.result())[start : start + len(samples_B)]
        return self.rows(self._order[samples_B.cpu()])

    def rows(self, rows_B: torch.Tensor) -> torch.Tensor:
        """Rows by their place in the array, fetched now."""
        return self._array[rows_B.cpu()].to(self._device)

    def _fetch(self, samples_B: torch.Tensor, ready: torch.cuda.Event | None) -> _Copy:
        if ready is None or self._stream is None:
            return self._array[self._order[samples_B]], None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            rows = self._order[samples_B.cpu()]
            pinned = torch.empty((len(rows), *self._array.shape[1:]), dtype=self._array.dtype, pin_memory=True)
            torch.index_select(self._array, 0, rows, out=pinned)
            copy, done = pinned.to(self._device, non_blocking=True), torch.cuda.Event()
            done.record()
        return copy, done


def _settled(copy: _Copy) -> torch.Tensor:
    """The rows, once what was asked of the device before is in order with them."""
    rows, done = copy
    if done is not None:
        stream = torch.cuda.current_stream(rows.device)
        stream.wait_event(done)
        rows.record_stream(stream)
    return rows
