"""Jobs on a real cluster of three nodes on this machine, with a token and a job server."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pel_ray import submission
from pel_ray.cli.jobs import command_of, interruptible
from pel_ray.errors import InputError, JobError, SettingsError
from pel_ray.job_package import make_package
from pel_ray.submission import JobServer, JobState
from tests.conftest import RunCommand
from tests.killing import SECONDS, wait_for
from tests.models import write_encoder
from tests.processes import descendants, is_running, started, with_start
from tests.ray_nodes import Cluster, environment_without_ray, free_port, processes_of, ray_nodes
from tests.reading import rows_of, vectors_in
from tests.samples import KB_ROWS, write_jsonl

pytestmark = pytest.mark.jobs

JOBS = Path(__file__).parent.parent / "jobs"
NOBODY = 65534


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_nodes(num_workers=2, num_cpus=1) as cluster:
        yield cluster
        pids = with_start([pid for node in cluster.nodes for pid in (node.process.pid, node.raylet_pid())])
    assert not cluster.folder.exists()
    wait_for(lambda: not any(is_running(pid, since) for pid, since in pids.items()))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all nodes see: an encoder `tiny` and a data set `set`."""
    shared = tmp_path_factory.mktemp("shared")
    write_encoder(shared / "tiny")
    write_jsonl(shared / "kb.jsonl", KB_ROWS)
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", "--kb", "kb.jsonl", "--out", "set"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=shared)
    return shared


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working directory with a spec, and with what must stay behind."""
    for name in (
        "jobs/encode.yaml",
        "code.py",
        "data/kb.jsonl",
        "runs/x",
        ".git/HEAD",
        ".venv/x",
        "a/__pycache__/x.pyc",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path


def run(cluster: Cluster, *arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: Ray reads its token once and for all."""
    command = [sys.executable, "-m", "pel_ray", *map(str, arguments)]
    return subprocess.run(
        command, env=cluster.environment | environment, cwd=cwd, capture_output=True, text=True, timeout=SECONDS
    )


def run_code(cluster: Cluster, code: str, cwd: Path) -> list[str]:
    """What Python code prints that has a `server`, and a `package` of the working directory."""
    before = (
        "import pathlib\n"
        "from pel_ray.job_package import make_package\n"
        "from pel_ray.submission import JobServer\n"
        f"server, package = JobServer({cluster.address!r}), make_package(pathlib.Path())\n"
    )
    command = [sys.executable, "-c", before + code]
    done = subprocess.run(
        command, env=cluster.environment, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return done.stdout.splitlines()


def encode_spec(project: Path, shared: Path, out: Path) -> None:
    settings = {
        "kb": str(shared / "set"),
        "out": str(out),
        "model": {"encoder": str(shared / "tiny")},
        "shard_rows": 2,
    }
    text = "# Command   pel-ray encode-kb --spec jobs/encode.yaml\n" + json.dumps(settings)
    (project / "jobs" / "encode.yaml").write_text(text)


def test_a_submitted_spec_runs_on_the_workers_and_gives_what_the_library_gives(
    cluster: Cluster, shared: Path, project: Path
) -> None:
    from pel_ray import ModelSettings, load_model

    encode_spec(project, shared, shared / "vectors")
    result = run(cluster, "submit", "--address", cluster.address, "jobs/encode.yaml", cwd=project)
    assert result.returncode == 0, result
    assert "2 files, 0.0 MiB" in result.stdout and "submitted job raysubmit_" in result.stdout
    assert "2 x (1 CPUs, 0 GPUs) on the cluster" in result.stdout and "vectors, 4 rows, done" in result.stdout
    expected = load_model(ModelSettings(encoder=str(shared / "tiny"))).encode_entities(rows_of(shared / "set", "kb"))
    np.testing.assert_allclose(vectors_in(shared / "vectors"), expected, atol=1e-3)
    step = {"name": "vectors", "run": "encode-kb", "spec": "jobs/encode.yaml"}
    (project / "jobs" / "pipeline.yaml").write_text(json.dumps({"out": str(shared), "steps": [step]}))
    again = run(cluster, "run", "jobs/pipeline.yaml", "--address", cluster.address, cwd=project)
    assert again.returncode == 0 and "already done" in again.stdout, again


def test_the_printed_line_of_ray_does_the_same(cluster: Cluster, shared: Path, project: Path) -> None:
    arguments = ["submit", "--address", cluster.address, "--exclude", "it's", "--print", "--", "show", shared / "set"]
    line = run(cluster, *arguments, cwd=project).stdout
    assert line.startswith("ray job submit ")
    done = subprocess.run(
        line, shell=True, env=cluster.environment, cwd=project, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0 and "aspirin" in done.stdout, done


def test_a_job_that_fails_again_leaves_its_exit_code_and_its_last_lines(cluster: Cluster, project: Path) -> None:
    arguments = ["submit", "--address", cluster.address, "--retries", 1, "--", "show", "/nowhere"]
    failed = run(cluster, *arguments, cwd=project)
    assert failed.returncode == 1 and failed.stdout.count("/nowhere does not exist") == 2
    assert len(set(re.findall(r"^submitted job (\S+)$", failed.stdout, re.MULTILINE))) == 2
    header, *_, last = failed.stderr.splitlines()
    assert "failed with exit code 1; its last lines:" in header and "/nowhere does not exist" in last
    job = header.split()[2]
    looked = run(cluster, "status", "--address", cluster.address, job, cwd=project)
    assert looked.returncode == 0 and f"job {job} failed with exit code 1: pel-ray show /nowhere" in looked.stdout
    log = run(cluster, "logs", job, cwd=project, RAY_API_SERVER_ADDRESS=cluster.address)
    assert log.returncode == 0 and "/nowhere does not exist" in log.stdout
    assert run(cluster, "logs", "--follow", job, cwd=project, RAY_API_SERVER_ADDRESS=cluster.address).returncode == 1


VISIBLE = """
import os
import ray
from pel_ray.runtime_session import ray_session
with ray_session():
    look = ray.remote(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))
    print("visible", repr(ray.get(look.remote())))
"""


@pytest.mark.parametrize("named", [False, True])
def test_who_asks_for_no_gpu_sees_none_on_nodes_that_know_nothing_of_us(
    cluster: Cluster, tmp_path: Path, named: bool
) -> None:
    (tmp_path / "visible.py").write_text(VISIBLE)
    # Ray takes no name twice, from the job and from what runs in it.
    environment = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}} if named else {}
    words = ["ray", "job", "submit", "--address", cluster.address, "--working-dir", "."]
    words += ["--runtime-env-json", json.dumps(environment), "--", sys.executable, "visible.py"]
    here = [sys.executable, "visible.py"]
    joined = {"RAY_ADDRESS": f"127.0.0.1:{cluster.gcs_port}", "PYTHONPATH": str(JOBS.parent)}
    for command, more in ((words, {}), (here, joined)):
        done = subprocess.run(
            command, env=cluster.environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0 and "visible ''" in done.stdout, done.stdout + done.stderr


def test_a_stopped_job_ends_and_is_listed_as_stopped(cluster: Cluster, project: Path) -> None:
    (job,) = run_code(cluster, "print(server.submit('sleep 300', package))", project)
    address = ["--address", cluster.address]
    assert "stopping" in run(cluster, "stop", *address, job, cwd=project).stdout
    assert run(cluster, "logs", "--follow", *address, job, cwd=project).returncode != 0
    listed = run(cluster, "status", *address, cwd=project).stdout
    (line,) = (line for line in listed.splitlines() if job in line)
    assert "stopped" in line and "sleep 300" in line
    assert "stopped already" in run(cluster, "stop", *address, job, cwd=project).stdout


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RAY_AUTH_TOKEN": "wrong" * 8}, "refuses this token"),
        ({"RAY_AUTH_MODE": "disabled"}, "wants a token and got none"),
        ({"RAY_AUTH_TOKEN_PATH": "/no/token"}, "RAY_AUTH_TOKEN_PATH is /no/token, where there is no file"),
    ],
)
def test_who_has_no_right_token_is_refused_in_one_line(
    cluster: Cluster, project: Path, environment: dict[str, str], expected: str
) -> None:
    result = run(cluster, "doctor", "--address", cluster.address, cwd=project, **environment)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result
    assert expected in result.stderr and cluster.token not in result.stderr


@pytest.mark.parametrize("by_path", [False, True])
def test_who_has_a_token_shows_it_without_being_told_to(cluster: Cluster, project: Path, by_path: bool) -> None:
    name = "RAY_AUTH_TOKEN_PATH" if by_path else "RAY_AUTH_TOKEN"
    environment = {key: value for key, value in cluster.environment.items() if not key.startswith("RAY_")}
    environment[name] = str(cluster.folder / "token") if by_path else cluster.token
    command = [sys.executable, "-m", "pel_ray", "submit", "--no-follow", "--address", cluster.address, "show", "/"]
    done = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and "submitted job" in done.stdout, done


def test_an_unknown_job_is_one_line(cluster: Cluster, project: Path) -> None:
    for arguments in (["status"], ["logs"], ["logs", "--follow"], ["stop"]):
        result = run(cluster, *arguments, "--address", cluster.address, "raysubmit_none", cwd=project)
        assert result.returncode == 1 and "knows no job raysubmit_none" in result.stderr, result
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.cluster
def test_a_node_that_does_not_see_the_folder_is_named_before_any_work(
    cluster: Cluster, shared: Path, project: Path
) -> None:
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("a node with other disks needs a mount namespace of its own, which needs root")
    blind = cluster.start_worker(1, address="127.0.0.2", without=shared)
    try:
        words = ["encode-kb", shared / "set", "--encoder", shared / "tiny", "--out", shared / "unseen"]
        result = run(cluster, *words, "--shard-rows", 2, "--address", cluster.address, cwd=project)
    finally:
        cluster.end_worker(blind)
    assert result.returncode == 1, result
    (said,) = (line for line in result.stdout.splitlines() if line.startswith("pel-ray: error: "))
    assert "unseen is not seen by 1 of 3 nodes (127.0.0.2: no such folder there)" in said and "shared storage" in said
    assert "Traceback" not in result.stdout + result.stderr
    assert not list((shared / "unseen").glob("vectors-*"))


def test_a_submitted_job_survives_a_killed_node(cluster: Cluster, shared: Path, project: Path) -> None:
    from pel_ray import ModelSettings, load_model

    write_jsonl(shared / "many.jsonl", [{"id": f"E{number}", "title": f"fever {number}"} for number in range(1600)])
    command = [sys.executable, "-m", "pel_ray", "import", "jsonl", "--kb", "many.jsonl", "--out", "many"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=shared)
    out = shared / "survived"
    words = ["encode-kb", shared / "many", "--encoder", shared / "tiny", "--out", out, "--shard-rows", 4]
    command = [sys.executable, "-m", "pel_ray", *words, "--address", cluster.address]
    with started(command, env=cluster.environment, cwd=project, stdout=subprocess.DEVNULL) as job:
        wait_for(lambda: len(list(out.glob("receipt-*"))) >= 2 or job.poll() is not None)
        node = cluster.node_at_work()
        node.kill_raylet()
        assert job.poll() is None and not (out / "manifest.json").exists(), "the job was over before the kill"
        cluster.end_worker(node)
        cluster.start_worker(1)
        assert job.wait(SECONDS) == 0
    expected = load_model(ModelSettings(encoder=str(shared / "tiny"))).encode_entities(rows_of(shared / "many", "kb"))
    np.testing.assert_allclose(vectors_in(out), expected, atol=1e-3)


@contextmanager
def web_server(answer: Callable[[str], tuple[int, str]]) -> Iterator[str]:
    """The address of a server that gives a status and a text for each path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, '{"ray_version": "2.9.3"}', "runs Ray 2.9.3"),
        (200, "hello", "does not answer as Ray"),
        (200, "{}", "does not answer as Ray"),
        (200, "[]", "does not answer as Ray"),
        (200, '{"ray_version": null}', "does not answer as Ray"),
        (404, "hello", "no job server of Ray"),
    ],
)
def test_an_address_without_a_fitting_server_is_one_line(
    pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch, status: int, text: str, expected: str
) -> None:
    # What is in the environment must not win over the address that was given.
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    with web_server(lambda _: (status, text)) as address:
        assert expected in pel_ray("status", "--address", address).error


def test_a_missing_token_is_not_called_a_wrong_one(tmp_path: Path) -> None:
    environment = environment_without_ray() | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    with web_server(lambda _: (200, "{}")) as address:
        command = [sys.executable, "-m", "pel_ray", "status", "--address", address]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done
    assert "wants a token and got none. Set RAY_AUTH_TOKEN" in done.stderr


class FailingServer:
    """A job server of one job, which ends with exit code 3; some requests get another answer before, or always."""

    def __init__(self, before: dict[str, list[int]], always: dict[str, int]) -> None:
        self._before, self._always = before, always

    def __call__(self, path: str) -> tuple[int, str]:
        if path == "/api/version":
            return 200, json.dumps({"ray_version": "2.60.0"})
        name = path.removeprefix("/api/jobs/")
        status = self._before[name].pop(0) if self._before.get(name) else self._always.get(name, 200)
        if status != 200 or name == "job/logs/tail":
            return status, "not now"
        if name == "job/logs":
            return 200, json.dumps({"logs": "all of it\n"})
        info = {"type": "SUBMISSION", "submission_id": "job", "entrypoint": "pel-ray", "status": "FAILED"}
        return 200, json.dumps(info | {"driver_exit_code": 3})


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # Of how Ray calls aiohttp.
@pytest.mark.parametrize(
    ("before", "always", "shown"),
    [
        ({"job": [503, 502]}, {}, "all of it\n"),
        ({"job": [200, 500]}, {}, "all of it\n"),
        ({"job/logs": [503]}, {}, "all of it\n"),
        ({}, {"job/logs": 503}, "the last of its log is lost"),
        ({}, {"job/logs": 404}, "the last of its log is lost"),
    ],
)
def test_a_server_that_fails_for_a_moment_hides_neither_the_end_of_a_job_nor_its_code(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, list[int]], always: dict[str, int], shown: str
) -> None:
    monkeypatch.setattr(submission, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(submission, "SECONDS_TO_RECONNECT", 0.2)
    lines: list[str] = []
    with web_server(FailingServer(before, always)) as address:
        server = JobServer(address)
        assert server.follow("job", lines.append).code == 3
        assert server.last_lines("job") == ([] if always else ["all of it"])
    assert shown in "".join(lines)


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # Of how Ray calls aiohttp.
def test_a_job_server_that_never_answers_again_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(submission, "SECONDS_TO_RECONNECT", 0.2)
    with (
        web_server(FailingServer({}, {"job": 503})) as address,
        pytest.raises(JobError, match="lost the job server .* while job job ran"),
    ):
        JobServer(address).follow("job", str)


def test_a_server_that_takes_a_request_and_says_nothing_is_given_up(
    pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert f"no job server answers at {address} (timed out)" in pel_ray("status", "--address", address).error


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # Of how Ray calls aiohttp.
def test_following_ends_when_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tail(job: str) -> AsyncIterator[str]:
        yield "a line\n"

    def show(text: str) -> None:
        raise BrokenPipeError

    with web_server(FailingServer({}, {})) as address:
        server = JobServer(address)
        monkeypatch.setattr(server._client, "tail_job_logs", tail)
        with pytest.raises(BrokenPipeError):
            server.follow("job", show)


def test_a_job_goes_on_only_if_it_was_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> JobState:
        raise KeyboardInterrupt

    with web_server(FailingServer({}, {})) as address:
        server = JobServer(address)
    for jobs, said in (([], ""), (["one", "two"], f"job two goes on; see `pel-ray status --address {address} two`")):
        with pytest.raises(KeyboardInterrupt):
            interruptible(stopped, server, jobs)
        assert capsys.readouterr().err.startswith(said) and bool(said) == bool(jobs)


@pytest.mark.parametrize("command", ["status", "logs", "stop"])
def test_a_job_without_a_name_is_wrong_usage(pel_ray: RunCommand, command: str) -> None:
    result = pel_ray(command, "--address", "http://head:8265", "")
    assert result.code == 2 and "is empty; `pel-ray status` lists the jobs" in result.err


def test_a_password_in_an_address_is_refused_and_not_shown(pel_ray: RunCommand) -> None:
    error = pel_ray("status", "--address", "http://me:secret@head:8265").error
    assert "has a password in it" in error and "secret" not in error


def test_what_is_no_address_of_a_job_server_is_one_line(pel_ray: RunCommand) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert f"no job server answers at {nobody}" in pel_ray("status", "--address", nobody).error
    for wrong in ("head:8265", "http://[::1", "http://head:none", "http://head:99999", "ray://head:10001"):
        assert f"{wrong} is not the address of a job server" in pel_ray("status", "--address", wrong).error


@pytest.mark.parametrize(("address", "port"), [("http://head", 80), ("https://head", 443), ("https://head:8265", 8265)])
def test_an_address_without_a_port_has_that_of_its_scheme(
    pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch, address: str, port: int
) -> None:
    def refuse(where: tuple[str, int], *_: object) -> None:
        raise ConnectionRefusedError(f"nobody at port {where[1]}")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert f"nobody at port {port})" in pel_ray("status", "--address", address).error


def test_the_package_holds_code_and_no_data(project: Path) -> None:
    (project / "code").mkdir()
    (project / "code" / "data").mkdir()
    (project / "code" / "data" / "module.py").write_text("x")
    (project / ".gitignore").write_text("*.log\n")
    (project / "big.log").write_text("x" * 1000)
    package = make_package(project)
    assert set(package.sizes) == {"jobs/encode.yaml", "code.py", "code/data/module.py", ".gitignore"}
    assert package.holds("code") and package.holds("jobs/encode.yaml") and not package.holds("data/kb.jsonl")
    with pytest.raises(InputError, match=r"The largest are jobs \(0.0 MiB\).*--exclude PATTERN"):
        make_package(project, max_bytes=10)
    assert set(make_package(project, ["code*"]).sizes) == {"jobs/encode.yaml", ".gitignore"}


def test_what_cannot_go_is_named(project: Path) -> None:
    os.mkfifo(project / "pipe")
    with pytest.raises(InputError, match="pipe: is a pipe, so it cannot go to the cluster.*--exclude PATTERN"):
        make_package(project)
    (project / "pipe").unlink()
    Path(os.fsdecode(os.fsencode(project) + b"/bad\xffname")).touch()
    with pytest.raises(InputError, match="bad\ufffdname: has a name that is not UTF-8, so it cannot go"):
        make_package(project)
    assert make_package(project, ["bad*"]).sizes


@pytest.mark.parametrize("folder", ["", "notes", "node_modules"])
def test_an_ignore_file_that_is_no_text_is_named(project: Path, folder: str) -> None:
    (project / folder).mkdir(exist_ok=True)
    (project / folder / ".gitignore").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match=r"its \.gitignore is not UTF-8 text.*--exclude PATTERN") as error:
        make_package(project)
    assert str(error.value).startswith(f"{project / folder}: ")


@pytest.fixture
def without_rights() -> Iterator[Path]:
    """A working directory, and for as long as the test runs a user who owns it and is not root."""
    with tempfile.TemporaryDirectory(prefix="pel-ray-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        make_package(folder)
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(folder, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            for path in folder.rglob("*"):
                path.chmod(0o700)


def test_what_may_not_be_read_is_named(without_rights: Path) -> None:
    (without_rights / "outer" / "inner").mkdir(parents=True)
    (without_rights / "secret.txt").touch(mode=0)
    with pytest.raises(InputError, match="secret.txt: cannot be read .Permission denied.*--exclude PATTERN"):
        make_package(without_rights)
    for mode in (0o000, 0o300):
        (without_rights / "outer" / "inner").chmod(mode)
        with pytest.raises(InputError, match="outer/inner: cannot be read .Permission denied.*--exclude PATTERN"):
            make_package(without_rights, ["secret.txt"])
        assert not make_package(without_rights, ["secret.txt", "outer"]).sizes


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["trian", "data"], 2, "did you mean 'train'?"),
        (["submit", "train"], 2, "no command to submit"),
        (["import", "obi", "x"], 2, "'obi' is no command"),
        (["encode-kb", "/kb", "--no-such"], 2, "--no-such"),
        (["train"], 2, "data is missing"),
        (["train", "/set", "--out", "/shared/x", "--set", "optimizer.lr=1"], 2, "did you mean 'optimiser'?"),
        (["encode-kb", "/kb", "--out", "runs/x"], 1, "would be in a temporary place of the cluster and be lost"),
        (["encode-kb", "data", "--out", "/shared/x"], 1, "kb data: is here but does not go to the cluster"),
        (["encode-kb", "nowhere/kb", "--out", "/shared/x"], 1, "kb nowhere/kb: is not here, so it cannot go"),
        (["link", "/runs/hpo"], 1, "files -: is what is piped in here"),
        (["link", "/runs/hpo", "/texts.txt", "-"], 1, "files -: is what is piped in here"),
    ],
)
def test_what_cannot_work_on_a_cluster_is_refused_before_it_is_sent_or_printed(
    pel_ray: RunCommand, project: Path, words: list[str], code: int, expected: str
) -> None:
    for flags in ([], ["--print"]):
        result = pel_ray("submit", "--address", f"http://127.0.0.1:{free_port()}", *flags, "--", *words)
        assert result.code == code and expected in result.err and result.out == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["encode-kb", "--spec=data/base.yaml"], "spec data/base.yaml: is here but does not go to the cluster"),
        (["encode-kb", "--spec", "jobs/more.yaml"], "spec data/base.yaml: is here but does not go to the cluster"),
        (["encode-kb", "--spec", "jobs/tiny.yaml"], "model.encoder runs/x: is here but does not go to the cluster"),
        (["run", "jobs/all.yaml"], "spec data/base.yaml: is here but does not go to the cluster"),
        (["run", "jobs/all.yaml", "--out", "made"], "out made: a relative folder would be"),
        (["run", "jobs/all.yaml", "--set", "vectors.kb=data"], "step vectors: kb data: is here but does not go"),
        (["run", "jobs/all.yaml", "--set", "vectors.out=x"], "step vectors: out x: a relative folder would be"),
        (["encode-kb", "--spec", "../outside.yaml"], "../outside.yaml: is outside of the working directory"),
        (["encode-kb", "--spec", "jobs/wrong.yaml"], "jobs/wrong.yaml: unknown key 'shard_row'; did you mean"),
        (["run", "jobs/all.yaml", "--set", "vectors.shard_row=2"], "step vectors: unknown key 'shard_row'"),
    ],
)
def test_a_job_whose_specs_or_steps_would_miss_something_is_refused(
    pel_ray: RunCommand, project: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    (project / "data" / "base.yaml").write_text("kb: /kb\nout: /shared/vectors\n")
    (project / "jobs" / "more.yaml").write_text("extends: ../data/base.yaml\nshard_rows: 2\n")
    step = "{name: vectors, run: encode-kb, spec: jobs/more.yaml, with: {out: '{out}/vectors'}}"
    (project / "jobs" / "all.yaml").write_text(f"out: /shared/all\nsteps: [{step}]\n")
    (project / "outside.yaml").write_text("kb: /kb\nout: /shared/vectors\n")
    (project / "jobs" / "wrong.yaml").write_text("kb: /kb\nout: /shared/vectors\nshard_row: 2\n")
    (project / "jobs" / "tiny.yaml").write_text("kb: /kb\nout: /shared/vectors\nmodel: {encoder: runs/x}\n")
    if "../outside.yaml" in words:
        monkeypatch.chdir(project / "jobs")
    result = pel_ray("submit", "--address", f"http://127.0.0.1:{free_port()}", "--", *words)
    assert expected in result.error


def test_a_spec_named_by_way_of_another_folder_is_found_on_the_cluster_too(
    pel_ray: RunCommand, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "jobs" / "plain.yaml").write_text("kb: /kb\nout: /shared/vectors\n")
    monkeypatch.chdir(project / "jobs")
    flags = ["--address", "http://head:8265", "--print"]
    assert "--spec plain.yaml" in pel_ray("submit", *flags, "--", "encode-kb", "--spec", "../jobs/plain.yaml").out


def test_an_address_behind_the_command_is_that_of_the_cluster(pel_ray: RunCommand, project: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    for address in (["--address", nobody], [f"--address={nobody}"]):
        assert f"no job server answers at {nobody}" in pel_ray("submit", "--", "show", "/shared/x", *address).error


def test_a_spec_says_which_command_it_is_for(tmp_path: Path) -> None:
    for spec in sorted(JOBS.glob("*.yaml")):
        name, *rest = command_of([str(spec), "--plan"])
        assert rest[-2:] == [str(spec), "--plan"], spec
        assert f"pel-ray {shlex.join([name, *rest[:-2]])}" in spec.read_text(), spec
    uri = (JOBS / "encode-kb.yaml").as_uri()
    assert command_of([uri]) == ["encode-kb", "--spec", uri]
    odd = tmp_path / "it's ünï.yaml"
    odd.write_text(f'# Command   pel-ray okb --spec "{odd.name}"\nout: x\n')
    assert command_of([str(odd)]) == ["okb", "--spec", str(odd)]
    silent = tmp_path / "silent.yaml"
    silent.write_text("# Command   pel-ray train --spec other.yaml\nout: x\n")
    with pytest.raises(SettingsError, match="does not say which command it is for"):
        command_of([str(silent)])


def test_only_what_may_succeed_the_next_time_is_worth_a_retry() -> None:
    def is_worth(status: str, exit_code: int | None) -> bool:
        return JobState("job", status, "pel-ray", exit_code, "").is_worth_a_retry

    assert is_worth("FAILED", 1) and is_worth("FAILED", None) and is_worth("FAILED", 137)
    # 2 is wrong usage; 3 that all but bad records is done.
    assert not is_worth("FAILED", 2) and not is_worth("FAILED", 3)
    assert not is_worth("STOPPED", 143) and not is_worth("SUCCEEDED", 0)


def test_an_exit_code_is_never_that_of_success_unless_the_job_succeeded() -> None:
    def code(status: str, exit_code: int | None) -> int:
        return JobState("job", status, "pel-ray", exit_code, "").code

    assert [code("SUCCEEDED", None), code("FAILED", None), code("STOPPED", 0), code("FAILED", 137)] == [0, 1, 1, 137]


@pytest.mark.cluster
def test_all_processes_of_a_cluster_end_with_it_also_after_an_error_and_a_killed_node() -> None:
    with pytest.raises(ZeroDivisionError), ray_nodes(num_workers=0) as cluster:
        (head,) = cluster.nodes
        pids = with_start([head.process.pid, *descendants(head.process.pid)])
        # Now nobody tells its children to end.
        head.process.kill()
        raise ZeroDivisionError
    wait_for(lambda: not any(is_running(pid, since) for pid, since in pids.items()))
    assert len(pids) > 4 and not processes_of(cluster) and not cluster.folder.exists()


def test_nothing_of_another_ray_reaches_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere")
    assert "RAY_ADDRESS" not in environment_without_ray()
