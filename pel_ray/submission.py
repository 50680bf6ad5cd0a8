"""Jobs on a Ray cluster: handing a command to its job server, following it, and saying how it ended."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pel_ray.authentication import show_token
from pel_ray.environment import variable
from pel_ray.errors import JobError, MissingPackage
from pel_ray.job_package import Package

Answer = TypeVar("Answer")
OLDEST_RAY = (2, 50)
PORTS = {"http": 80, "https": 443}
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 30.0
SECONDS_TO_RECONNECT = 60.0
"""A job server that is away for longer is taken for lost, and its jobs with it."""
SECONDS_BETWEEN_LOOKS = 1.0
AGENT_SECONDS = 60.0
"""To wait for the agent of a head that has just started."""
NUM_LAST_LINES = 20
NOT_AGAIN = (2, 3)
"""Exit codes of wrong usage, and of what is done but for bad records, which are bad again."""
CHATTY = (
    *("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk"),
    *("_private.runtime_env.packaging", "_private.runtime_env.working_dir"),
)
"""Modules of Ray that report on what we say in our own words."""


@dataclass(frozen=True)
class JobState:
    """How far a job is, or how it ended."""

    job: str
    status: str
    entrypoint: str
    exit_code: int | None
    """What the command on the cluster left, for a shell: 128 and the signal where one ended it; None if not known."""
    message: str

    @property
    def has_ended(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")

    @property
    def code(self) -> int:
        """What to exit with in its place: never 0 unless it succeeded."""
        return 0 if self.status == "SUCCEEDED" else self.exit_code or 1

    @property
    def is_worth_a_retry(self) -> bool:
        """A command that was wrongly used is wrong again; one that somebody stopped is not wanted."""
        return self.status == "FAILED" and self.exit_code not in NOT_AGAIN

    def __str__(self) -> str:
        how = f" with exit code {self.exit_code}" if self.status == "FAILED" and self.exit_code else ""
        return f"job {self.job} {self.status.lower()}{how}"


class JobServer:
    """The job server of one cluster, which is on its head at port 8265."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._client = _connect(self.address)

    def submit(self, entrypoint: str, package: Package) -> str:
        """Uploads the package, if the cluster has not got it, and starts the command; returns the id of the job."""
        deadline = time.monotonic() + AGENT_SECONDS
        while True:
            try:
                with self._explained():
                    job: str = self._client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env(package))
                return job
            except JobError as error:
                # The server answers some seconds before the head's agent, which starts jobs, is there.
                if "No available agent" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def state(self, job: str) -> JobState:
        with self._explained(job):
            return _state(self._client.get_job_info(job))

    def states(self) -> list[JobState]:
        """Of all jobs that were submitted, the newest last."""
        with self._explained():
            found = [info for info in self._client.list_jobs() if info.submission_id]
        return [_state(info) for info in sorted(found, key=lambda info: info.start_time or 0)]

    def log(self, job: str) -> str:
        with self._explained(job):
            text: str = self._client.get_job_logs(job)
        return text

    def last_lines(self, job: str) -> list[str]:
        """None where the log is out of reach: whoever shows them knows already how the job ended."""
        try:
            return self.log(job).splitlines()[-NUM_LAST_LINES:]
        except JobError:
            return []

    def stop(self, job: str) -> bool:
        """Asks a job to end; False if it had ended already."""
        with self._explained(job):
            was_running: bool = self._client.stop_job(job)
        return was_running

    def follow(self, job: str, show: Callable[[str], None]) -> JobState:
        """Shows the log as it grows, until the job has ended."""
        state, num_shown = self._when_back(job, self.state), 0
        while True:
            num_shown = self._tail(job, show, num_shown)
            state = self._when_back(job, self.state)
            if state.has_ended:
                show(self._rest_of_log(job, num_shown))
                return state
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _rest_of_log(self, job: str, num_shown: int) -> str:
        """What was written between the last look at the log and the end; how the job ended must not be lost with it."""
        try:
            return self._when_back(job, self.log)[num_shown:]
        except JobError as error:
            return f"pel-ray: job {job} has ended, but the last of its log is lost: {error}\n"

    def _tail(self, job: str, show: Callable[[str], None], num_shown: int) -> int:
        """Shows what is new for as long as the connection holds; returns how many characters were shown in all."""
        import aiohttp

        async def tail() -> None:
            nonlocal num_shown
            num_seen = 0
            async for text in self._client.tail_job_logs(job):
                # A connection that is made again begins at the beginning.
                show(text[max(num_shown - num_seen, 0) :])
                num_seen += len(text)
                num_shown = max(num_shown, num_seen)

        try:
            asyncio.run(tail())
        except BrokenPipeError:
            # Whoever reads what is shown has gone, as `head` does.
            raise
        except (RuntimeError, OSError, aiohttp.ClientError):
            # The state, which the caller asks for next, says whether the job has ended or the server is away.
            logging.getLogger(__name__).debug("lost the log of %s", job)
        return num_shown

    def _when_back(self, job: str, ask: Callable[[str], Answer]) -> Answer:
        deadline = time.monotonic() + SECONDS_TO_RECONNECT
        while True:
            try:
                return ask(job)
            except JobError as error:
                if not _may_pass(error.__cause__):
                    raise
                if time.monotonic() > deadline:
                    raise JobError(
                        f"lost the job server at {self.address} while job {job} ran. If the head is gone, so is the "
                        "job: submit it again when the cluster is back, and it goes on where it was"
                    ) from error
            time.sleep(SECONDS_BETWEEN_LOOKS)

    @contextmanager
    def _explained(self, job: str = "") -> Iterator[None]:
        with _explained(self.address, job):
            yield


def runtime_env(package: Package) -> dict[str, Any]:
    return {"working_dir": str(package.folder), "excludes": list(package.excludes)}


def equivalent_line(address: str, entrypoint: Sequence[str], package_folder: str, excludes: Sequence[str]) -> str:
    """The line of Ray's own command line that submits the same."""
    environment = json.dumps({"excludes": list(excludes)})
    words = ["ray", "job", "submit", "--address", address, "--working-dir", package_folder]
    return shlex.join([*words, "--runtime-env-json", environment, "--", *entrypoint])


def run_job(
    server: JobServer,
    entrypoint: str,
    package: Package,
    *,
    retries: int,
    begun: Callable[[str], None],
    again: Callable[[str], None],
    show: Callable[[str], None],
) -> JobState:
    """Submits and follows; a job that failed is submitted again, which does only what is not done yet."""
    for attempt in range(retries + 1):
        job = server.submit(entrypoint, package)
        begun(job)
        state = server.follow(job, show)
        if not state.is_worth_a_retry or attempt == retries:
            break
        again(f"{state}; submitting it again, {retries - attempt} more times at the most")
    return state


def _state(info: Any) -> JobState:
    code = info.driver_exit_code
    # Python says -9 of a process that signal 9 ended, a shell 137.
    exit_code = 128 - code if code is not None and code < 0 else code
    status = str(getattr(info.status, "value", info.status))
    return JobState(info.submission_id or info.job_id, status, info.entrypoint, exit_code, info.message or "")


def _connect(address: str) -> Any:
    where = _host_and_port(address)
    client_class = _client_class()
    # What RAY_ADDRESS says would win over what the client is told.
    with _explained(address), variable("RAY_API_SERVER_ADDRESS", address):
        _check_answers(*where, address)
        try:
            client = client_class(address)
        except (KeyError, TypeError) as error:
            # Ray's client takes any JSON for that of a job server.
            raise ValueError("its answer names no version of Ray") from error
    version = str(getattr(client, "_server_ray_version", None) or "")
    if version and tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        raise JobError(
            f"the cluster at {address} runs Ray {version}, pel-ray needs {OLDEST_RAY[0]}.{OLDEST_RAY[1]} or newer. "
            "Start it from an image with the versions of constraints.txt (cluster/Dockerfile)"
        )
    return client


def _check_answers(host: str, port: int, address: str) -> None:
    """Ray's client would wait for ever for one that takes a request and says nothing."""
    probe = HTTPConnection(host, port, timeout=SECONDS_TO_CONNECT)
    with closing(probe):
        probe.connect()
        if urlsplit(address).scheme == "http":
            probe.sock.settimeout(SECONDS_TO_ANSWER)
            try:
                probe.request("GET", "/api/version")
                probe.getresponse().read()
            except HTTPException as error:
                raise ValueError("it sends no HTTP") from error


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        found = urlsplit(address)
        host, port = found.hostname, found.port or PORTS.get(found.scheme)
    except ValueError:
        host = port = None
    else:
        if found.password is not None:
            raise JobError(
                "the address of the job server has a password in it, which Ray does not use. Leave it out: a token is "
                "shown by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
    if not host or not port or found.scheme not in PORTS:
        raise JobError(f"{address} is not the address of a job server. Expected one like http://head:8265")
    return host, port


def _client_class() -> Any:
    show_token()
    try:
        import aiohttp  # noqa: F401 - Ray's client needs it, and says so only with a traceback
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise MissingPackage("jobs need Ray's job client. Run: pip install 'ray[default]'") from error
    for name in CHATTY:
        logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)
    return JobSubmissionClient


@contextmanager
def _explained(address: str, job: str = "") -> Iterator[None]:
    """Turns what Ray's client raises into one line that says what to do."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise JobError(_refusal(address, str(error))) from error
    except ValueError as error:
        # First, for an answer that is no JSON is an OSError too, as all errors of the library `requests` are.
        raise JobError(f"{address} does not answer as Ray's job server does ({_first_line(error)})") from error
    except OSError as error:
        raise JobError(
            f"no job server answers at {address} ({_first_line(error)}). Is the cluster up, does its head listen there "
            "(ray start --head --dashboard-host ...), and may this machine reach it?"
        ) from error
    except RuntimeError as error:
        raise JobError(_request_problem(address, job, _first_line(error))) from error


def _refusal(address: str, problem: str) -> str:
    # How Ray words a 403; with a token to look for and none found, it refuses before it asks the cluster.
    if problem.startswith("Authentication failed"):
        return (
            f"the cluster at {address} refuses this token: it has another. Compare RAY_AUTH_TOKEN or the file of "
            "RAY_AUTH_TOKEN_PATH (else ~/.ray/auth_token) with the head's"
        )
    return (
        f"the cluster at {address} wants a token and got none. Set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file "
        "that holds it"
    )


def _may_pass(problem: BaseException | None) -> bool:
    """Whether a server was away, or what is before it said so for it (5xx), rather than that it refused."""
    return isinstance(problem, OSError) or bool(re.match(r"Request failed with status code 5\d\d\b", str(problem)))


def _request_problem(address: str, job: str, problem: str) -> str:
    if "status code 404" in problem and job:
        return f"{address} knows no job {job}. `pel-ray status` lists those that it knows"
    if "returned 404" in problem:
        return f"{address} is no job server of Ray, or one of Ray 1: {problem}"
    return f"the job server at {address} refused: {problem}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
