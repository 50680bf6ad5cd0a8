"""How much memory this process has taken."""

from __future__ import annotations

import resource
import sys


def peak_bytes() -> int:
    """The most resident memory this program has had; getrusage would count that of the process that started it too."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Linux counts ru_maxrss in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
