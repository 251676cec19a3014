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
    assert len(found) == 5
    pairs = 0
    for line in found:
        products, pairs, shared, warps = map(int, line.split())
        assert products > 0
        assert shared * 8 <= 200 * 1024 * warps, "eight warps fit on a multiprocessor"
    # 64 x 64 offsets of a bias and a gain, 18 of which differ in a thread (32 if addresses
    # were not taken apart), and LSE with Delta of 16 columns.
    assert pairs == 18 + 16
