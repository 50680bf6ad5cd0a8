"""Fixtures every test may use."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Models so small only wait for a second thread: many times as long on a busy machine. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray gives its workers the lowest priority, so that on a busy machine a test would wait minutes for one to start.
os.environ.setdefault("RAY_worker_niceness", "0")

from pel_ray.cli import main  # noqa: E402

_NAMES = "cluster train jobs encode_kb rank distil cli mine evaluate link guides one_gpu pipeline s3_train s3"
LONGEST_FIRST = _NAMES.split()
"""Files of tests by how long they take, so that no worker is left alone with a long one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line a user's mistake gets."""
        lines = self.err.splitlines()
        assert self.code == 1, self
        assert len(lines) == 1 and lines[0].startswith("pel-ray: error: "), self.err
        return lines[0].removeprefix("pel-ray: error: ")


RunCommand = Callable[..., Result]


@pytest.fixture
def pel_ray(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Runs the command line in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return run


def _mounted(path: Path, options: str) -> Iterator[Path]:
    path.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path]).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full after 64 KiB."""
    yield from _mounted(tmp_path / "full", "size=64k")


@pytest.fixture
def disk_of_one_folder(tmp_path: Path) -> Iterator[Path]:
    """A file system that has room for one folder and no more."""
    yield from _mounted(tmp_path / "full", "size=64k,nr_inodes=2")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    yield from _mounted(tmp_path / "read-only", "ro")


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """One Ray for all tests of a session, with four logical CPUs whatever the machine has; commands join it."""
    import ray

    # Workers of a cluster have credentials of their own: these are for the S3 server that the tests start.
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()
