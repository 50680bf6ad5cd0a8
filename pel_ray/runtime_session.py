"""Ray for as long as a block runs: a cluster that is joined, or one that is started here."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pel_ray.errors import ResourceError

QUIET = {
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
}
"""For a Ray of our own, which has no dashboard to show it: each of its processes would take time of the workers."""
HIDES_GPUS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
"""Who asks for no GPU sees none: else torch would take one that is promised to somebody else."""
SECONDS_TO_CONNECT = 10.0
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray tells the command of a job of itself."""


def is_job() -> bool:
    """Whether this is the command of a job that was submitted to a cluster."""
    return _JOB in os.environ


@contextmanager
def ray_session(num_cpus: int | None = None) -> Iterator[None]:
    """Joins the cluster that RAY_ADDRESS or a job names, or starts Ray here for as long as the block runs.

    One that is started has as many CPUs as there are cores, or `num_cpus`.
    """
    with _own_signals() as noted:
        import ray

        is_ours = not ray.is_initialized()
        if is_ours and not noted:
            if address := os.environ.get("RAY_ADDRESS"):
                _join(address)
            else:
                _start(num_cpus or _cores())
    try:
        for number in noted:
            signal.raise_signal(number)
        yield
    finally:
        if is_ours:
            ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[list[int]]:
    """Notes the signals that come while Ray is imported and starts, and gives them to their handlers afterwards.

    An exception that a handler raises in an import can get lost, and Ray takes SIGTERM for itself, to end with a code
    of its own and a dump. Who insists by a second signal need not wait.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, _: Any) -> None:
        if noted:
            os._exit(128 + number)
        noted.append(number)

    found = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, note)
    shown = sys.unraisablehook

    def note_lost(lost: sys.UnraisableHookArgs) -> None:
        # Of Ray's own handler, after a fork.
        if isinstance(lost.exc_value, SystemExit) and lost.exc_value.code in handlers:
            noted.append(lost.exc_value.code)
        else:
            shown(lost)

    sys.unraisablehook = note_lost
    try:
        yield noted
    except SystemExit as end:
        # Ray's own handler has begun to end this process.
        if end.code not in handlers:
            raise
        raise SystemExit(128 + end.code) from end
    finally:
        sys.unraisablehook = shown
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _start(num_cpus: int) -> None:
    import ray

    for name, value in (QUIET | {HIDES_GPUS: "1"}).items():
        os.environ.setdefault(name, value)
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _join(address: str) -> None:
    import ray

    if address.startswith(("http://", "https://")):
        raise ResourceError(
            f"RAY_ADDRESS is {address}, a job server, which cannot be joined. To run there: pel-ray COMMAND --address "
            f"{address}; to run here: unset RAY_ADDRESS"
        )
    try:
        _check_answers(address)
        ray.init(runtime_env=_for_workers(), log_to_driver=False, logging_level=logging.ERROR)
    except (ray.exceptions.AuthenticationError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ResourceError(
            f"RAY_ADDRESS is {address}, but no cluster can be joined there ({reason}). Expected one that this machine "
            "is a node of, such as head:6379, and its token if it has one (RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH). To run here, unset RAY_ADDRESS; to run elsewhere: --address http://head:8265"
        ) from error


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes, and fill the screen meanwhile."""
    found = urlsplit(address if "://" in address else f"//{address}")
    if found.hostname and found.port:
        socket.create_connection((found.hostname, found.port), SECONDS_TO_CONNECT).close()


def _for_workers() -> dict[str, Any]:
    """What a worker would else have only on nodes of our image, where the environment of its raylet has it.

    A name that the job's own runtime environment has too would be refused; its workers have that one anyway.
    """
    job = json.loads(os.environ.get(_JOB, "{}")).get("runtime_env") or {}
    if HIDES_GPUS in (job.get("env_vars") or {}):
        return {}
    return {"env_vars": {HIDES_GPUS: os.environ.get(HIDES_GPUS, "1")}}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
