"""Training seen from outside: the driver reads the lines that the workers write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pel_ray.metrics_file import MetricsFile
from pel_ray.progress import RateProgress


@contextmanager
def following(metrics: MetricsFile, epoch: int, num_steps: int, num_epochs: int) -> Iterator[None]:
    """Shows steps, loss, speed and the time left while an epoch is trained."""
    over = threading.Event()
    start = metrics.last().get("step", 0) - epoch * num_steps
    with RateProgress(f"training epoch {epoch + 1} of {num_epochs}, step", num_steps, max(start, 0)) as progress:

        def follow() -> None:
            seen = max(start, 0)
            is_over = False
            while not is_over:
                is_over = over.wait(max(metrics.seconds_between, 1.0))
                line = metrics.last()
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
