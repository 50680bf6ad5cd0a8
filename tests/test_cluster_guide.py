"""The guide to a cluster, from its first line to its last, as on a machine of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.killing import SECONDS
from tests.ray_nodes import environment_with_programs
from tests.reading import sh_blocks, vectors_in

pytestmark = pytest.mark.cluster
ALONE = ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
"""Ports, processes and their end are its own: the guide takes Ray's default ports, and ends all of Ray that it sees."""


@pytest.fixture
def ray_folder() -> Iterator[str]:
    # Sockets are in here, and their paths may have 107 characters at most.
    folder = tempfile.mkdtemp(prefix="pel-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_every_block_of_the_guide_to_a_cluster_runs(tmp_path: Path, ray_folder: str) -> None:
    environment = environment_with_programs() | {"HOME": str(tmp_path), "RAY_TMPDIR": ray_folder}
    blocks = ["ip link set lo up", sh_blocks("own-kb")[0], *sh_blocks("cluster")]
    script = "".join(f"echo '== {number}'\n{block}\n" for number, block in enumerate(blocks))
    done = subprocess.run(
        [*ALONE, "sh", "-ec", script],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=2 * SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, _, here, start, there, through_ray, stop = done.stdout.split("== ")
    assert "vectors, 12 rows, done" in here and "Ray runtime started" in start
    assert "vectors, 12 rows, done" in there and "succeeded" in there and "on the cluster" in there
    assert "already done" in through_ray and "Stopped all" in stop
    one, other = (vectors_in(tmp_path / "runs" / name) for name in ("vectors", "vectors-there"))
    np.testing.assert_allclose(one, other, atol=1e-3)
