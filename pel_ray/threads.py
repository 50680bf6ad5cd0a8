"""How many threads compute: the same number gives the same bytes."""

from __future__ import annotations

import torch


def set_threads(count: int) -> None:
    """Of torch and FAISS."""
    torch.set_num_threads(count)
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(count)
