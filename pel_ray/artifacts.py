"""Artefact folders: what a step leaves behind, and how a rerun knows that it is done.

A finished folder has a `manifest.json`, written last. It lists the files that count, so replacing work means
writing new files beside the old ones and then swapping the manifest: the old work stays whole until the new
one is. While a step runs, `unfinished.json` says what it is making; a folder with neither file is not ours.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

import pel_ray
from pel_ray.errors import ArtifactError
from pel_ray.memory import peak_bytes
from pel_ray.storage import Location, storage_errors, without_credentials

MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
LOCK = ".writing"
_OURS = re.compile(r".+-[0-9a-f]{8}(\.[a-z]+)+|\..+\.[0-9a-f]{8}\.tmp|\.writing")
"""Names that only our steps give: `part-00000-1a2b3c4d.parquet`, temporary files, the lock."""


@dataclass(frozen=True)
class Input:
    """A file or folder that a step reads, known by what it holds and not by where it lies."""

    path: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a step is asked to make; two requests with one fingerprint make the same folder."""

    kind: str
    inputs: Mapping[str, Input]
    settings: Mapping[str, Any]
    version: int = 1
    """Raised when the step's own code starts to make something else of the same inputs and settings."""

    @property
    def fingerprint(self) -> str:
        canonical = json.dumps(self._what_counts(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def differences(self, other: Request) -> list[str]:
        """The keys in which the work in a folder (`other`) differs from this request."""
        return differences(self._what_counts(), other._what_counts())

    def _what_counts(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": self.version,
            "inputs": {role: {"content": source.digest} for role, source in self.inputs.items()},
            "settings": dict(self.settings),
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Request:
        inputs = {role: Input(**source) for role, source in content["inputs"].items()}
        return cls(kind=content["kind"], inputs=inputs, settings=content["settings"], version=content["version"])


def differences(asked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What differs between what is asked for and what is there, key by key, in words."""
    here, there = _flat(asked), _flat(found)
    return [
        _difference(key, there.get(key), here.get(key))
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    ]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is in a finished folder and how it came to be."""

    request: Request
    files: Mapping[str, int]
    """Name and bytes of every file that counts, so that a cut-off copy is noticed."""
    counts: Mapping[str, Any]
    versions: Mapping[str, str]
    command: str
    seconds: float
    peak_memory_bytes: int
    finished_at: str

    def to_json(self) -> dict[str, Any]:
        content = asdict(self) | {"fingerprint": self.request.fingerprint}
        content |= content.pop("request")
        return content | {"checksum": _checksum(content)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Manifest:
        if content["checksum"] != _checksum(content):
            raise ValueError("its checksum does not fit")
        rest = {name: content[name] for name in cls.__dataclass_fields__ if name != "request"}
        return cls(request=Request.from_json(content), **rest)


def _checksum(content: Mapping[str, Any]) -> str:
    """Of all but the checksum itself: a manifest that was damaged or changed by hand says nothing reliable."""
    counted = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


@dataclass
class Work:
    """A folder in the making."""

    folder: Location
    request: Request
    counts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    """Of the step's own work, where it shares the time with another; else from start to manifest."""

    @contextmanager
    def writing(self, stem: str, suffix: str) -> Iterator[Any]:
        """A stream to a new file, which counts once the block has ended well."""
        name = self.name(stem, suffix)
        with (self.folder / name).writing() as stream:
            yield stream
        self.count(name)

    def count(self, name: str) -> None:
        """Lists a whole file of this folder in the manifest."""
        info = (self.folder / name).info()
        if info.size is None:
            raise ArtifactError(f"{self.folder / name} is gone. Was it deleted meanwhile? Run the same command again")
        self.files[name] = info.size

    @property
    def tag(self) -> str:
        """Keeps the files of an --overwrite apart from those the old manifest still lists."""
        return self.request.fingerprint[:8]

    def name(self, stem: str, suffix: str) -> str:
        return f"{stem}-{self.tag}{suffix}"


def read_manifest(folder: Location, kind: str | None = None) -> Manifest:
    """The manifest of a finished folder whose files are all there, or an error that says what is wrong."""
    manifest = _manifest_or_none(folder)
    if manifest is None:
        raise ArtifactError(f"{folder} {_why_no_manifest(folder)}")
    if kind is not None and manifest.request.kind != kind:
        raise ArtifactError(f"{folder} holds {manifest.request.kind}, expected {kind}")
    sizes = folder.sizes(manifest.files)
    for name, size in manifest.files.items():
        if sizes.get(name) != size:
            state = f"has {sizes[name]:,} bytes" if name in sizes else "is missing"
            raise ArtifactError(
                f"{folder / name} {state}, its manifest says {size:,} bytes. Make {folder} again with --overwrite, "
                "or copy it again from where it is whole"
            )
    return manifest


def finished(folder: Location, request: Request, *, overwrite: bool = False) -> Manifest | None:
    """The manifest if this request has been carried out here, nothing if it is to be carried out now.

    A folder with anything else in it is refused: other work of this kind unless it may be overwritten, what another
    step has made and foreign files always.
    """
    if folder.is_file():
        raise ArtifactError(f"{folder} is a file. Name a folder that is not there yet, or one of an earlier run")
    names = folder.names()
    if MANIFEST not in names and UNFINISHED not in names:
        foreign = [name for name in names if not _OURS.fullmatch(name)]
        if foreign:
            raise ArtifactError(f"{folder} holds what is not of this step ({foreign[0]}). Choose another --out folder")
    kinds = _kinds_at(folder) - {request.kind}
    if kinds:
        raise ArtifactError(
            f"{folder} holds {kinds.pop()}, which {request.kind} may not replace. Choose another folder"
        )
    if overwrite:
        return None
    begun, manifest = _unfinished_or_none(folder), _manifest_or_none(folder)
    if begun is not None:
        _refuse_other_work(folder, request, begun, "holds unfinished work")
    if manifest is not None:
        _refuse_other_work(folder, request, manifest.request, "holds other work")
        return read_manifest(folder)
    return None


@contextmanager
def building(folder: Location, request: Request, *, resumable: bool = False, option: str = "--out") -> Iterator[Work]:
    """The folder in the making: finished with its manifest when the block ends well, cleared when it fails.

    A resumable step keeps the files of this request from one try to the next: each is whole under its name. `option`
    is how a user names the folder.
    """
    began = time.monotonic()
    with _only_writer(folder, option):
        old_files = _counted_files(folder)
        work = Work(folder, request)
        try:
            # By name and not by a list made earlier: a worker of a killed run may still be finishing a file.
            _clear(folder, keep=old_files, keep_tag=work.tag if resumable else None)
            _write_json(folder / UNFINISHED, request.to_json())
            yield work
            _write_json(folder / MANIFEST, _manifest_of(work, work.seconds or time.monotonic() - began).to_json())
        except BaseException:
            if not resumable or not _has_begun(folder, work.tag):
                _clear(folder, keep=old_files)
            raise
        _clear(folder, keep=set(work.files), also=old_files)


@contextmanager
def _only_writer(folder: Location, option: str) -> Iterator[None]:
    """Refuses a second run that would write the same local folder. A bucket has no locks: there it is up to users."""
    if not folder.is_local:
        yield
        return
    file = folder / LOCK
    created = _missing_folders(folder)
    try:
        with storage_errors(folder, "write"):
            folder.make_folder()
            descriptor = os.open(file.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, file, option)
            try:
                yield
            finally:
                file.delete_file()
        finally:
            os.close(descriptor)
    finally:
        for location in created:
            location.delete_folder_if_empty()


def _lock(descriptor: int, file: Location, option: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The other run may have finished and deleted the file between its opening and its lock.
        is_ours = os.fstat(descriptor).st_ino == os.stat(file.path).st_ino
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    except OSError as error:
        # Some network file systems have no locks either.
        is_ours = error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
    if not is_ours:
        raise ArtifactError(
            f"{file.parent} is being written by another run. Wait for it, or choose another {option} folder"
        )


def _manifest_of(work: Work, seconds: float) -> Manifest:
    import pyarrow

    return Manifest(
        request=work.request,
        files=work.files,
        counts=work.counts,
        versions={
            "pel_ray": pel_ray.__version__,
            "python": platform.python_version(),
            "pyarrow": pyarrow.__version__,
        },
        command=without_credentials(shlex.join(["pel-ray", *sys.argv[1:]])),
        seconds=round(seconds, 3),
        peak_memory_bytes=peak_bytes(),
        finished_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _clear(folder: Location, keep: set[str], also: Collection[str] = (), keep_tag: str | None = None) -> None:
    """Deletes what our steps wrote and no manifest counts, and nothing that has another name than ours."""
    for name in folder.names():
        if name in {*keep, LOCK} or (keep_tag is not None and keep_tag in name):
            continue
        if name in also or name == UNFINISHED or _OURS.fullmatch(name):
            (folder / name).delete_file()


def _counted_files(folder: Location) -> set[str]:
    """The files of finished work here; a damaged manifest counts none."""
    try:
        manifest = _manifest_or_none(folder)
    except ArtifactError:
        return set()
    return set(manifest.files) if manifest else set()


def _missing_folders(folder: Location) -> list[Location]:
    """The folders that writing here will create, innermost first."""
    missing = []
    while folder.is_local and not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing


def _has_begun(folder: Location, tag: str) -> bool:
    """Whether anything is there that the next try could go on from."""
    return any(tag in name and not name.startswith((".", "attempt-")) for name in folder.names())


def _kinds_at(folder: Location) -> set[str]:
    """What finished and unfinished work here is; nothing of what is damaged, which may be replaced."""
    kinds = set()
    with suppress(ArtifactError):
        begun = _unfinished_or_none(folder)
        kinds |= {begun.kind} if begun else set()
    with suppress(ArtifactError):
        manifest = _manifest_or_none(folder)
        kinds |= {manifest.request.kind} if manifest else set()
    return kinds


def _manifest_or_none(folder: Location) -> Manifest | None:
    content = _read_json(folder / MANIFEST)
    return None if content is None else _parsed(folder / MANIFEST, Manifest, content)


def _unfinished_or_none(folder: Location) -> Request | None:
    content = _read_json(folder / UNFINISHED)
    return None if content is None else _parsed(folder / UNFINISHED, Request, content)


def _parsed(file: Location, shape: Any, content: Any) -> Any:
    try:
        return shape.from_json(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArtifactError(
            f"{file} is damaged ({error}). Make its folder again with --overwrite, or choose another one"
        ) from error


def _read_json(file: Location) -> Any:
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise ArtifactError(f"{file} is damaged ({error}). Make its folder again with --overwrite") from error


def _write_json(file: Location, content: Mapping[str, Any]) -> None:
    file.write_bytes((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _why_no_manifest(folder: Location) -> str:
    if (folder / UNFINISHED).is_file():
        return "is unfinished: run the command that was making it again"
    if not folder.exists():
        if folder.is_local and folder.parent.is_file():
            return f"does not exist: {folder.parent} is a file. Bring it in with `pel-ray import` first"
        return "does not exist"
    inner = [name for name in folder.names() if not name.startswith(".") and (folder / name / MANIFEST).is_file()]
    if inner:
        return f"is no pel-ray folder itself, it holds some: {', '.join(inner[:5])}. Name one of them"
    return f"is not a pel-ray folder: it has no {MANIFEST}"


def _refuse_other_work(folder: Location, request: Request, found: Request, holds: str) -> None:
    differences = request.differences(found)
    if differences:
        raise ArtifactError(
            f"{folder} {holds}: {'; '.join(differences)}. "
            "Choose another --out folder, or pass --overwrite to replace it"
        )


def _difference(key: str, there: Any, here: Any) -> str:
    if key.startswith("inputs."):
        role = key.removeprefix("inputs.").removesuffix(".content")
        return f"the content of {role} is another" if here and there else f"{role} is {'new' if here else 'gone'}"
    return f"{key.removeprefix('settings.')} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
