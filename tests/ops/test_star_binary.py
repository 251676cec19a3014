"""The kernels of the star become binaries for an H100 or H200, without having one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_binaries_use_tensor_cores_and_fit() -> None:
    script = Path(__file__).with_name("binaries.py")
    plain = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=plain,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        products, shared = map(int, line.split())
        assert products > 0
        assert shared <= 100 * 1024, "two programs fit on a multiprocessor"
