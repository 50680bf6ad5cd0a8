"""What workers ask for, by the nodes that there are: no Ray is started for it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pel_ray.errors import ResourceError, SettingsError
from pel_ray.runtime import Resources, ask_of
from pel_ray.spec import resolve
from tests.ray_nodes import environment_without_ray

HEAD = {"CPU": 0.0}


def node(cpus: float, gpus: float = 0) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(8)], (1, 8, 0)),
        ([node(8, 1)], (1, 8, 1)),
        ([node(32, 4)], (1, 32, 1)),
        ([HEAD, node(8)], (1, 8, 0)),
        ([HEAD, node(4), node(8)], (2, 4, 0)),
        ([HEAD, node(8, 1), node(64)], (1, 8, 1)),
        ([HEAD, node(32, 4), node(8, 1)], (5, 8, 1)),
        ([HEAD, node(8, 4), node(8, 1)], (5, 2, 1)),
        ([HEAD, node(64, 8)], (8, 8, 1)),
        ([HEAD, node(4, 8)], (4, 1, 1)),
    ],
)
def test_auto_takes_all_that_is_there_and_always_fits(nodes: list[dict[str, float]], expected: tuple[int, ...]) -> None:
    ask = ask_of(Resources(), nodes)
    assert (ask.workers, ask.cpus, ask.gpus) == expected and ask.is_local == (len(nodes) == 1)


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [
        ({"cpu": True}, [HEAD, node(8, 1), node(64)], (2, 32, 0)),
        ({"workers": 3}, [HEAD, node(4), node(8)], (3, 4, 0)),
        ({"workers": 3}, [node(8)], (3, 2, 0)),
        ({"cpus": 6}, [HEAD, node(4), node(8)], (1, 6, 0)),
        ({"cpus": 2}, [HEAD, node(4, 4), node(8, 1)], (3, 2, 1)),
        ({"gpus": 2}, [HEAD, node(32, 4), node(8, 1)], (2, 16, 2)),
        ({"gpus": 0.5}, [HEAD, node(8, 1), node(8, 1)], (2, 8, 0.5)),
        ({"gpus": 0}, [HEAD, node(8, 1)], (1, 8, 0)),
    ],
)
def test_what_is_asked_for_is_given_and_auto_fills_the_rest(
    asked: dict[str, Any], nodes: list[dict[str, float]], expected: tuple[float, ...]
) -> None:
    ask = ask_of(Resources(**asked), nodes)
    assert (ask.workers, ask.cpus, ask.gpus) == expected


@pytest.mark.parametrize(
    ("asked", "nodes", "said"),
    [
        ({}, [HEAD], "no node of the cluster has CPUs"),
        ({"gpus": 1}, [HEAD, node(8)], "there is no GPU here. Pass --cpu"),
        ({"gpus": 2}, [HEAD, node(8, 1)], "room for 0"),
        ({"workers": 9}, [HEAD, node(4), node(4)], "the cluster has .4 CPUs, 0 GPUs. . .4 CPUs, 0 GPUs., room for 8"),
        ({"cpus": 16}, [HEAD, node(8)], "1 workers of 16 CPUs and 0 GPUs each do not fit"),
    ],
)
def test_what_can_never_be_met_is_refused(asked: dict[str, Any], nodes: list[dict[str, float]], said: str) -> None:
    with pytest.raises(ResourceError, match=said):
        ask_of(Resources(**asked), nodes)


@pytest.mark.parametrize("gpus", [1.5, 2.25, float("inf")])
def test_more_than_one_gpu_is_a_whole_number(gpus: float) -> None:
    with pytest.raises(SettingsError, match="gpus.* takes whole GPUs or a part of one"):
        resolve(Resources, values={"gpus": gpus})


JOIN = """
from pel_ray.errors import ResourceError
from pel_ray.runtime_session import ray_session
try:
    with ray_session():
        pass
except ResourceError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("address", "environment", "said"),
    [
        ("http://127.0.0.1:8265", {}, "a job server, which cannot be joined. To run there: pel-ray COMMAND --address"),
        ("127.0.0.1:1", {}, "no cluster can be joined there ([Errno 111] Connection refused)"),
        ("nonsense", {}, "no cluster can be joined there (Invalid address format: nonsense)"),
        ("listening", {"RAY_AUTH_MODE": "token"}, "no authentication token was found"),
    ],
)
def test_an_address_that_cannot_be_joined_is_one_line(
    tmp_path: Path, address: str, environment: dict[str, str], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        if address == "listening":
            address = f"127.0.0.1:{server.getsockname()[1]}"
        # A process of its own, with a home of its own: Ray reads its token once and for all.
        told = environment_without_ray() | {"HOME": str(tmp_path), "RAY_ADDRESS": address} | environment
        done = subprocess.run([sys.executable, "-c", JOIN], env=told, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"RAY_ADDRESS is {address}, ") and said in line and "unset RAY_ADDRESS" in line
