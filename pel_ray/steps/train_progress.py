"""Training seen from outside: the driver reads the lines that the workers write."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pel_ray.progress import RateProgress


@contextmanager
def following(metrics: pathlib.Path, epoch: int, num_steps: int, num_epochs: int) -> Iterator[None]:
    """Shows steps, loss, speed and the time left while an epoch is trained."""
    over = threading.Event()
    start = last_line(metrics).get("step", 0) - epoch * num_steps
    with RateProgress(f"training epoch {epoch + 1} of {num_epochs}, step", num_steps, max(start, 0)) as progress:

        def follow() -> None:
            seen = max(start, 0)
            is_over = False
            while not is_over:
                is_over = over.wait(1.0)
                line = last_line(metrics)
                step = line.get("step", 0) - epoch * num_steps
                if step > seen and "loss" in line:
                    progress.add(
                        step - seen, note=f"loss {line['loss']:.4f}, {line['pieces_per_second']:,.0f} pieces/s"
                    )
                    seen = step

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def last_line(metrics: pathlib.Path) -> dict[str, Any]:
    """The newest whole line; nothing where there is none."""
    try:
        with open(metrics, "rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - 4096, 0))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    whole = [line for line in lines[-2:] if line.endswith(b"\n")]
    try:
        return dict(json.loads(whole[-1])) if whole else {}
    except ValueError:
        return {}
