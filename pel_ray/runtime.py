"""Ray: asking only for what is there, and carrying work on shards to workers."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, field_validator

from pel_ray.errors import PelRayError, ResourceError, StorageError
from pel_ray.spec import Settings
from pel_ray.storage import Location
from pel_ray.vectors import Shard

ShardWork = Callable[[Any], Callable[[Shard], dict[str, Any]]]
"""A class that is made with a job and then called with shards; each call returns a receipt."""
SECONDS_TO_KNOW = 0.5
Node = dict[str, float]
"""What a node of the cluster has: CPU, GPU, ..."""


class Resources(Settings):
    """With what a step runs."""

    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Workers; auto: one on one machine, with a GPU or all cores; on several nodes one per GPU, or per node without."""
    cpus: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """CPU cores (and threads) of a worker."""
    gpus: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """GPUs of a worker; auto: one where there are any."""
    cpu: bool = False
    """Use no GPU, whatever `gpus` says: a spec for a GPU then runs on a machine without one."""

    @field_validator("gpus")
    @classmethod
    def _whole_above_one(cls, gpus: float | Literal["auto"]) -> float | Literal["auto"]:
        if gpus != "auto" and gpus > 1 and not gpus.is_integer():
            raise ValueError("a worker takes whole GPUs or a part of one: 1, 2, ... or less than 1, such as 0.5")
        return gpus


@dataclass(frozen=True)
class Ask:
    """What the workers of a step take, in numbers."""

    workers: int
    cpus: int
    gpus: float
    is_local: bool

    def __str__(self) -> str:
        where = "here" if self.is_local else "on the cluster"
        return f"{self.workers} x ({self.cpus} CPUs, {self.gpus:g} GPUs) {where}"


def resolve_ask(resources: Resources) -> Ask:
    """Fits the request to the cluster; an ask that can never be met is refused instead of waited for."""
    import ray

    return ask_of(resources, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def is_free(ask: Ask) -> bool:
    """Whether one of the workers could start now. What a step before has freed is known to Ray only after a moment."""
    import ray

    for wait in (0, SECONDS_TO_KNOW):
        time.sleep(wait)
        free = ray.available_resources()
        if free.get("CPU", 0) >= ask.cpus and free.get("GPU", 0) >= ask.gpus:
            return True
    return False


def ask_of(resources: Resources, alive: Sequence[Node]) -> Ask:
    """The same for nodes of which one knows what each has."""
    nodes = [node for node in alive if node.get("CPU")]
    if not nodes:
        raise ResourceError("no node of the cluster has CPUs to work with. Add workers to it")
    # A head without CPUs is another machine than its one worker.
    is_local = len(alive) == 1
    gpus = gpus_of_worker(resources, nodes)
    workers = _default_workers(resources, gpus, nodes, is_local) if resources.workers == "auto" else resources.workers
    cpus = _largest_cpus(workers, gpus, nodes) if resources.cpus == "auto" else resources.cpus
    _check_fit(workers, cpus, gpus, nodes)
    return Ask(workers, cpus, gpus, is_local)


def gpus_of_worker(resources: Resources, nodes: Sequence[Node]) -> float:
    """What is asked for, or one where there are any; GPUs where there are none are refused."""
    most = 0 if resources.cpu else max(node.get("GPU", 0) for node in nodes)
    gpus = float(min(most, 1)) if resources.gpus == "auto" or resources.cpu else float(resources.gpus)
    if gpus and not most:
        raise ResourceError(
            f"resources.gpus is {gpus:g}, but there is no GPU here. Pass --cpu to run on CPUs, or set resources.gpus "
            "to auto; `pel-ray doctor` says whether torch sees a GPU"
        )
    return gpus


def _default_workers(resources: Resources, gpus: float, nodes: Sequence[Node], is_local: bool) -> int:
    """One here; on a cluster one for each GPU, or on each node that has the cores."""
    if is_local:
        return 1
    cpus = 1 if resources.cpus == "auto" else resources.cpus
    if not gpus:
        return max(_room(nodes, cpus, 0, most=1), 1)
    num_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    return max(_room(nodes, cpus, max(gpus, 1), most=num_gpus), 1)


def _largest_cpus(workers: int, gpus: float, nodes: Sequence[Node]) -> int:
    """Cores of a worker, as many as all of them can have."""
    largest = int(max(node["CPU"] for node in nodes))
    return next((cpus for cpus in range(largest, 1, -1) if _room(nodes, cpus, gpus, most=workers) >= workers), 1)


def _room(nodes: Sequence[Node], cpus: int, gpus: float, most: int) -> int:
    """How many workers have a place, `most` on a node at the most."""
    return sum(
        int(min(most, node["CPU"] // cpus if cpus else most, node.get("GPU", 0) // gpus if gpus else most))
        for node in nodes
    )


def _check_fit(workers: int, cpus: int, gpus: float, nodes: Sequence[Node]) -> None:
    room = _room(nodes, cpus, gpus, most=workers)
    if room < workers:
        have = " + ".join(f"({node['CPU']:g} CPUs, {node.get('GPU', 0):g} GPUs)" for node in nodes)
        raise ResourceError(
            f"{workers} workers of {cpus} CPUs and {gpus:g} GPUs each do not fit: the cluster has {have}, room for "
            f"{room}. Ask for fewer workers, or for less per worker (resources.workers, .cpus, .gpus)"
        )


@contextmanager
def workers(ask: Ask) -> Iterator[Workers]:
    """Workers for all phases of a step: warm actors here, or on a cluster a pool for each phase."""
    found: Workers = WarmActors(ask) if ask.is_local else ActorPools(ask)
    try:
        yield found
    finally:
        found.stop()


class Workers(Protocol):
    """Carries shards to where they are worked on."""

    ask: Ask

    def map(self, work: ShardWork, job: Any, shards: Sequence[Shard]) -> Iterator[dict[str, Any]]:
        """Receipts as they come, in any order. A worker that dies is replaced and its shard done again."""

    def check_sees(self, folder: Location) -> None:
        """Refuses a folder that a worker could not reach."""

    def stop(self) -> None:
        """Frees what the workers hold; the next phase starts them again."""


class _Host:
    """Does the work of one phase after the other in one process, which has torch loaded after the first."""

    def __init__(self) -> None:
        self._current: tuple[int, Callable[[Shard], dict[str, Any]]] | None = None

    def ready(self) -> None:
        """Says that it runs: on a cluster that others use too it may have to wait for its place."""

    def call(self, phase: int, work: ShardWork, job: Any, shard: Shard) -> dict[str, Any]:
        if self._current is None or self._current[0] != phase:
            # The model of the phase before goes first: two might not fit.
            self._current = None
            self._current = (phase, work(job))
        return self._current[1](shard)


class WarmActors:
    """The workers of one machine: actors that stay from phase to phase, as to start them anew would cost seconds.

    Ray Data's loop and its actors would take 4% of a core from them all the while, and buy nothing where there is one
    node: no data moves here but a shard's number and its receipt.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._actors: list[Any] = []
        self._phase = 0

    def map(self, work: ShardWork, job: Any, shards: Sequence[Shard]) -> Iterator[dict[str, Any]]:
        import ray

        self._phase += 1
        # Once into the object store: a job may carry what a reuse knows of millions of texts.
        phase, shared = self._phase, ray.put(job)
        waiting = deque(shards)
        starting = {actor.ready.remote(): actor for actor in self._started(min(self.ask.workers, len(shards)))}
        running: dict[Any, Any] = {}
        shards_of: dict[Any, int] = {}
        try:
            while waiting or running:
                (done,), _ = ray.wait([*starting, *running])
                if done in starting:
                    shards_of[starting.pop(done)] = 0
                else:
                    shards_of[running.pop(done)] -= 1
                while waiting:
                    actor = min(shards_of, key=lambda actor: shards_of[actor])
                    # Two for each, so that the next is there when one is done, but one stays for who is still starting.
                    if shards_of[actor] >= (2 if len(waiting) > len(starting) else 1):
                        break
                    running[actor.call.remote(phase, work, shared, waiting.popleft())] = actor
                    shards_of[actor] += 1
                answer = ray.get(done)
                if answer is not None:
                    yield answer
        finally:
            # Whoever stops listening wants no more: else Ray would say that it tries again what ends with the actor.
            for call in [*starting, *running]:
                ray.cancel(call)

    def _started(self, count: int) -> list[Any]:
        import ray

        asked: dict[str, Any] = {"num_cpus": self.ask.cpus, "num_gpus": self.ask.gpus}
        host = ray.remote(**asked, max_restarts=-1, max_task_retries=-1)(_Host)
        self._actors += [host.remote() for _ in range(count - len(self._actors))]
        return self._actors[:count]

    def check_sees(self, folder: Location) -> None:
        """They are on this machine."""

    def stop(self) -> None:
        import ray

        while self._actors:
            ray.kill(self._actors.pop())


class _PooledWork:
    """Gives a Ray Data batch of one row to the work as the shard that it is."""

    def __init__(self, work: ShardWork, job: Any) -> None:
        self._call = work(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard = Shard(**{name: int(values[0]) for name, values in batch.items()})
        return {name: [value] for name, value in self._call(shard).items()}


class ActorPools:
    """A Ray Data actor pool for each phase, which frees what it held when the phase is over.

    A phase of one shard needs no pool: one warm actor serves such phases for as long as no pool needs its place.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._one = WarmActors(ask)
        self._seen: set[str] = set()

    def map(self, work: ShardWork, job: Any, shards: Sequence[Shard]) -> Iterator[dict[str, Any]]:
        import ray

        if len(shards) == 1:
            yield from self._one.map(work, job, shards)
            return
        self._one.stop()
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # Ray Data would add up a worker's memory maps every second; receipts have its peak from the kernel.
        context.memory_usage_poll_interval_s = None
        plan = ray.data.from_items([asdict(shard) for shard in shards], override_num_blocks=len(shards))
        receipts = plan.map_batches(
            _PooledWork,
            fn_constructor_args=(work, job),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(self.ask.workers, len(shards))),
            num_cpus=self.ask.cpus,
            num_gpus=self.ask.gpus or None,
        )
        for row in receipts.iter_rows():
            yield dict(row)

    def check_sees(self, folder: Location) -> None:
        if folder.address not in self._seen:
            check_all_nodes_see(folder)
            self._seen.add(folder.address)

    def stop(self) -> None:
        self._one.stop()


def check_all_nodes_see(folder: Location) -> None:
    """Writes a file and lets a task on every node look for it: work on another disk would be lost."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    mark = folder / f".seen.{uuid.uuid4().hex[:8]}.tmp"
    mark.write_bytes(b"seen")
    look = ray.remote(num_cpus=0)(_sees)
    try:
        answers = [
            (
                node["NodeManagerAddress"],
                look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                    mark
                ),
            )
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        ]
        blind = [(address, said) for address, answer in answers if (said := _answer_of_living(answer))]
    finally:
        mark.delete_file()
    if blind:
        address, said = blind[0]
        raise StorageError(
            f"{folder} is not seen by {len(blind)} of {len(answers)} nodes ({address}: {said}). On a cluster every "
            "folder must be on shared storage: a mounted disk, or an s3:// or gs:// URI that all nodes may write"
        )


def _answer_of_living(answer: Any) -> str:
    """A node that died since will do no work, so it need not see the folder."""
    import ray

    try:
        return str(ray.get(answer))
    except (ray.exceptions.TaskUnschedulableError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
        return ""


def _sees(mark: Location) -> str:
    """Nothing if this node sees the file, else why not."""
    try:
        return "" if mark.is_file() else "no such folder there"
    except PelRayError as error:
        return str(error)
