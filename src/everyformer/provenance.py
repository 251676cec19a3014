"""Where a result comes from: versions, commit and machine, for certificates and files.

The verifier in one file has this module too, so it needs nothing but Python. The name of
the GPU needs torch: `bench.results.gpu_name`.
"""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions(*packages: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of this checkout; EVERYFORMER_COMMIT says it where git cannot."""
    if os.environ.get("EVERYFORMER_COMMIT"):
        return os.environ["EVERYFORMER_COMMIT"]
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
        )
    except OSError:
        return None
    return found.stdout.strip() or None


def cpu_name() -> str:
    """The model of the processor, as well as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
