"""How many threads compute, and what each of them computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
AHEAD = 2
"""Items for each thread that are held at once, those that it works on included."""


def set_threads(count: int) -> None:
    """Of torch and FAISS."""
    torch.set_num_threads(count)
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(count)


def one_thread_each(work: Callable[[Item], None], items: Iterable[Item], device: torch.device) -> None:
    """Does the work of all items; on a CPU beside each other, each with one of torch's threads.

    Threads that share an operation wait for each other at its end: for small batches, and most of all on a busy
    machine, that takes longer than the work itself.
    """
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1:
        for item in items:
            work(item)
        return
    begun: deque[Future[None]] = deque()
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) == AHEAD * num_threads:
                    begun.popleft().result()
            while begun:
                begun.popleft().result()
    finally:
        # New threads take over the number that was set last.
        torch.set_num_threads(num_threads)
