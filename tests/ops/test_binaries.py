"""Kernels become binaries for an H100 or H200, without having one."""

import os
import sys
from pathlib import Path

import pytest
from tests.programs import run_program

pytest.importorskip("triton")


def test_binaries_use_tensor_cores_and_fit() -> None:
    script = Path(__file__).with_name("binaries.py")
    plain = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = run_program(sys.executable, script, env=plain)
    found = done.stdout.splitlines()
    assert len(found) == 4
    for line in found:
        products, shared = map(int, line.split())
        assert products > 0
        assert shared <= 100 * 1024, "two programs fit on a multiprocessor"
