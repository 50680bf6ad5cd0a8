"""What of the working directory goes to a cluster with a job: the code and the specs, not the data and the results."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pel_ray.authentication import show_token
from pel_ray.errors import InputError

MAX_BYTES = 100 << 20
"""Ray keeps packages in the memory of the head, and every node that works on the job fetches one."""
EXCLUDES = (
    # At the top only: a package may well have a module named data.
    *("/data", "/runs", "/build", "/dist"),
    *(".git", ".venv", "venv", "__pycache__", "*.egg-info", "node_modules", ".DS_Store"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
)
"""Patterns as in .gitignore; .gitignore and .rayignore files count too, as they do for `ray job submit`."""
IGNORE_FILES = (".gitignore", ".rayignore")
NUM_LARGEST = 3
_LEFT_OUT = "so it cannot go to the cluster. Leave it out with --exclude PATTERN"


@dataclass(frozen=True)
class Package:
    """The files of a folder that a job takes along."""

    folder: Path
    excludes: tuple[str, ...]
    sizes: dict[str, int]
    """Bytes by path below the folder."""

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes.values())

    def __str__(self) -> str:
        return f"{len(self.sizes):,} files, {_mebibytes(self.num_bytes)}"

    def holds(self, path: str) -> bool:
        """Whether a file, or something in a folder, goes along."""
        inside = Path(path).as_posix()
        return inside == "." or any(name == inside or name.startswith(f"{inside}/") for name in self.sizes)


def make_package(folder: Path, more_excludes: Sequence[str] = (), max_bytes: int = MAX_BYTES) -> Package:
    """Looks which files would go, and refuses more than a cluster should be sent."""
    excludes = (*EXCLUDES, *more_excludes)
    package = Package(folder, excludes, _sizes(folder.absolute(), excludes))
    if package.num_bytes > max_bytes:
        raise InputError(
            str(folder),
            f"{package} would go to the cluster, at most {_mebibytes(max_bytes)} may. The largest are "
            f"{', '.join(_largest(package))}: leave out what the job does not read with --exclude PATTERN or a line in "
            ".rayignore, and give it data as absolute paths on shared storage or s3:// URIs",
        )
    return package


def _sizes(folder: Path, excludes: Sequence[str]) -> dict[str, int]:
    # The job that the package goes along with shows a token, and by then Ray is imported.
    show_token()
    # Ray's own walk, so that what we count is what Ray uploads.
    from ray._private.runtime_env import packaging

    sizes: dict[str, int] = {}
    seen: list[Path] = []

    def count(path: Path) -> None:
        _check_can_go(path)
        if path.is_dir():
            seen.append(path)
        elif path.is_file():
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size

    silent = logging.getLogger(f"{__name__}.walk")
    silent.setLevel(logging.CRITICAL)
    matches = packaging._get_excludes(folder, list(excludes))
    try:
        packaging._dir_travel(folder, [matches], count, include_gitignore=True, logger=silent)
    except OSError as error:
        where = Path(error.filename or folder)
        raise _unreadable(where.parent if where.name in IGNORE_FILES else where, error.strerror or "") from error
    except UnicodeDecodeError as error:
        file = _no_text(folder, seen)
        raise _unreadable(file.parent, f"its {file.name} is not UTF-8 text") from error
    return sizes


def _check_can_go(path: Path) -> None:
    """Ray would find out only when it sends the file, or wait for ever for who writes into a pipe."""
    try:
        path.name.encode()
        if path.is_fifo():
            raise InputError(str(path), f"is a pipe, {_LEFT_OUT}")
        if path.is_file():
            path.open("rb").close()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="surrogateescape").decode(errors="replace")
        raise InputError(shown, f"has a name that is not UTF-8, {_LEFT_OUT}") from error
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}), {_LEFT_OUT}") from error


def _unreadable(folder: Path, reason: str) -> InputError:
    return InputError(
        str(folder),
        f"cannot be read ({reason}), so the working directory cannot go to the cluster. Mend it, or leave out a folder "
        "around it with --exclude PATTERN: of its own name is too late, as Ray reads .gitignore in it first",
    )


def _no_text(folder: Path, seen: Iterable[Path]) -> Path:
    """The ignore file that Ray stumbled over without naming it: it reads also those of folders that it leaves out."""
    folders = [folder, *(path for parent in seen for path in parent.iterdir())]
    files = (path / name for path in folders for name in IGNORE_FILES)
    return next(file for file in files if not _is_text_or_missing(file))


def _is_text_or_missing(file: Path) -> bool:
    try:
        file.read_text()
    except UnicodeDecodeError:
        return False
    except OSError:
        return True
    return True


def _largest(package: Package) -> list[str]:
    tops: Counter[str] = Counter()
    for name, size in package.sizes.items():
        tops[name.split("/", 1)[0]] += size
    return [f"{name} ({_mebibytes(size)})" for name, size in tops.most_common(NUM_LARGEST)]


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"
