"""A Ray cluster on this machine: each node a `ray start` process of its own, with a token and a job server."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.killing import SECONDS, does_our_work, wait_for
from tests.processes import descendants, end_all, program, with_start

HERE = "127.0.0.1"
OBJECT_STORE_BYTES = 100 << 20
NUM_WORKER_PORTS = 60
NUM_PORTS = 1_000


@dataclass
class Node:
    """One `ray start --block`, which is the parent of all that its node runs."""

    process: subprocess.Popen[bytes]
    log: Path
    _ours: dict[int, str] = field(default_factory=dict)

    def raylet_pid(self) -> int:
        (pid,) = (pid for pid in descendants(self.process.pid) if program(pid) == "raylet")
        return pid

    def ask_to_end(self) -> None:
        self._ours |= with_start(descendants(self.process.pid))
        self.process.terminate()

    def kill_raylet(self) -> None:
        """As if the machine had failed. Its other processes then look for parents, so they are noted before."""
        self._ours |= with_start(descendants(self.process.pid))
        os.kill(self.raylet_pid(), signal.SIGKILL)

    def end(self) -> None:
        """Ends every process that the node had when it was asked to or killed, by pid."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        end_all(self._ours)
        self.process.kill()
        self.process.wait(10)


@dataclass
class Cluster:
    """A head without CPUs, and workers; commands are run with `environment`."""

    folder: Path
    token: str
    ports: Iterator[int]
    """That nobody else takes: below those that the kernel hands out, which any connection may get meanwhile."""
    nodes: list[Node] = field(default_factory=list)
    """Those that should be alive, the head first."""
    num_started: int = 0

    def __post_init__(self) -> None:
        self.dashboard_port, self.gcs_port = next(self.ports), next(self.ports)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def environment(self) -> dict[str, str]:
        """For who may use the cluster; nothing of another Ray that this process may have."""
        return environment_with_programs() | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "RAY_raylet_start_wait_time_s": str(SECONDS),
            "RAY_worker_niceness": "0",
            "RAY_enable_metrics_collection": "0",
            # A killed raylet refuses at once, and is given up after five such answers; by default 3 s apart.
            "RAY_health_check_period_ms": "1000",
        }

    def start_head(self) -> None:
        self._start(
            *("--head", "--num-cpus=0", f"--port={self.gcs_port}", f"--temp-dir={self.folder / 'ray'}"),
            f"--node-ip-address={HERE}",
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard_port}"),
        )
        self._wait_for_nodes()

    def start_worker(self, num_cpus: int, address: str = HERE, without: Path | None = None) -> Node:
        """One after the other: two that start at once on one machine can choose the same name for their sockets.

        A worker `without` a folder has an empty one in its place, as if that were on another disk.
        """
        # Nodes of other machines share no folder for what jobs bring along: the second would take away the first's.
        temporary = tempfile.mkdtemp(prefix="ray-", dir=self.folder)
        options = [f"--address={HERE}:{self.gcs_port}", f"--num-cpus={num_cpus}", f"--node-ip-address={address}"]
        options.append(f"--temp-dir={temporary}")
        hiding = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(without)]
        node = self._start(*options, wrapped_by=hiding if without else [])
        self._wait_for_nodes()
        return node

    def end_worker(self, node: Node) -> None:
        node.ask_to_end()
        node.end()
        self.nodes.remove(node)
        self._wait_for_nodes()

    def node_at_work(self) -> Node:
        """A worker that does our work, as soon as there is one."""
        found: list[Node] = []

        def has_one() -> bool:
            found[:] = [node for node in self.nodes[1:] if any(map(does_our_work, descendants(node.process.pid)))]
            return bool(found)

        wait_for(has_one, every=0.1)
        return found[0]

    def _wait_for_nodes(self) -> None:
        """Until the head knows of all, and has missed those that ended."""
        try:
            wait_for(lambda: self.num_alive() == len(self.nodes), every=0.5)
        except AssertionError as error:
            logs = [*(node.log for node in self.nodes), *self.folder.glob("ray/session_latest/logs/dashboard*.log")]
            raise AssertionError(f"{error}\n" + "\n".join(log.read_text()[-2000:] for log in logs)) from error

    def _start(self, *options: str, wrapped_by: Sequence[str] = ()) -> Node:
        log_file = self.folder / f"node-{self.num_started}.log"
        self.num_started += 1
        command = [*wrapped_by, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += ["--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}", *options]
        # The default is one port for every Ray of a machine, and a head whose agent lacks it starts no jobs.
        agent_ports = next(self.ports), next(self.ports)
        command += [f"--dashboard-agent-listen-port={agent_ports[0]}", f"--dashboard-agent-grpc-port={agent_ports[1]}"]
        worker_ports = list(islice(self.ports, NUM_WORKER_PORTS))
        command += [f"--min-worker-port={worker_ports[0]}", f"--max-worker-port={worker_ports[-1]}"]
        with open(log_file, "wb") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        self.nodes.append(Node(process, log_file))
        return self.nodes[-1]

    def num_alive(self) -> int:
        """Nodes that the head knows and hears of; 0 while it does not answer yet."""
        for node in self.nodes:
            assert node.process.poll() is None, node.log.read_text()
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.address}/nodes?view=summary", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                nodes = json.load(answer)["data"]["summary"]
        except OSError:
            return 0
        return sum(node["raylet"].get("state") == "ALIVE" for node in nodes)


@contextmanager
def ray_nodes(num_workers: int = 1, num_cpus: int = 1) -> Iterator[Cluster]:
    """A head and workers with `num_cpus` each; all their processes are gone when the block ends, also by an error."""
    # Sockets are in here, and their paths may have 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="pel-", dir="/tmp"))
    holder, ports = reserved_ports()
    cluster = Cluster(folder, secrets.token_hex(32), iter(ports))
    (folder / "token").write_text(cluster.token)
    try:
        cluster.start_head()
        for _ in range(num_workers):
            cluster.start_worker(num_cpus)
        yield cluster
    finally:
        for node in cluster.nodes:
            node.ask_to_end()
        for node in cluster.nodes:
            node.end()
        wait_for(lambda: not _killed(cluster), every=0.2)
        holder.close()
        shutil.rmtree(folder, ignore_errors=True)


def reserved_ports() -> tuple[socket.socket, range]:
    """A range of ports for one cluster, and what keeps it from other tests: a socket on the port before it."""
    blocks = range(12_000, 32_000, NUM_PORTS)
    for first in secrets.SystemRandom().sample(blocks, len(blocks)):
        holder = socket.socket()
        try:
            holder.bind((HERE, first))
        except OSError:
            holder.close()
        else:
            return holder, range(first + 1, first + NUM_PORTS)
    raise AssertionError("no ports are left")


def _killed(cluster: Cluster) -> list[int]:
    """Of a node whose own process was killed before it could end them; one of them may start another meanwhile."""
    pids = processes_of(cluster)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def processes_of(cluster: Cluster) -> list[int]:
    """All that were started with the token of this cluster, whoever their parents are now."""
    token = f"RAY_AUTH_TOKEN_PATH={cluster.folder / 'token'}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if token in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def environment_without_ray() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def environment_with_programs() -> dict[str, str]:
    """The same, and `pel-ray` and `ray` are those of this Python."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return environment_without_ray() | {"PATH": programs}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
