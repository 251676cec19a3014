"""The GPU kernels: on a GPU where there is one, and as plain C++ everywhere else."""

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.programs import run_program

import everyformer as ef
from everyformer import patterns
from everyformer.errors import NumberKindError
from everyformer.model.execute import cpu, cuda
from everyformer.model.execute.pack import PackedLayers, pack
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.targets import prefix_mean, soft_attention

PLAIN_COPY = {
    "copy": "tiles[current ^ 1][e] = weights[next + e];",
    "commit": "",
    "wait": "",
}
SHIM = """
extern "C" double exp(double);
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static thread_local
#define __syncthreads()
static struct { int x; } threadIdx = {0}, blockDim = {1};
static thread_local struct { int x; } blockIdx = {0};
"""
LOOP = """
extern "C" void all(const T* weights, T* state, int layers, int count)
{
    for (blockIdx.x = 0; blockIdx.x < count; ++blockIdx.x)
        run(weights, state, layers, count);
}
"""


def as_plain_cpp(part: PackedLayers, n: int, d: int, folder: Path) -> ctypes.CDLL:
    """The kernel's source, compiled by the host compiler, one thread at a time."""
    text = SHIM + cuda.source(part, n, d, "double", PLAIN_COPY) + LOOP
    path = folder / "kernel.cpp"
    path.write_text(text)
    command = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
    run_program(*command, "-o", folder / "kernel.so", path)
    return ctypes.CDLL(str(folder / "kernel.so"))


def method_of(kind: str, *, softened: bool) -> ef.Method:
    if kind == "sparse":
        return ef.SparseShifts(patterns.ring(3), softened=softened)
    if kind == "urpe":
        return ef.UrpeShifts(softened=softened)
    return ef.SelectiveShifts(softened=softened)


@pytest.mark.rows(3)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("kind", ["positional", "equivariant", "urpe"])
def test_kernels_as_plain_cpp_equal_the_cpu_executor(
    softened: bool, kind: str, tmp_path: Path
) -> None:
    target = soft_attention(2, 2) if kind == "equivariant" else prefix_mean(3, 1)
    built = ef.construct(target, grid=4, method=method_of(kind, softened=softened))
    network = built.network.in_float64(allow_rounding=True)
    x = np.random.default_rng(0).random((9, target.seq_len, target.d_model))
    state = x if network.positions is None else x + network.positions
    for number, part in enumerate(pack(network.stages, network.architecture)):
        expected = cpu.run((part,), state)
        folder = tmp_path / str(number)
        folder.mkdir()
        library = as_plain_cpp(part, target.seq_len, target.d_model, folder)
        given = np.ascontiguousarray(state)
        library.all(
            part.rows.ctypes.data_as(ctypes.c_void_p),
            given.ctypes.data_as(ctypes.c_void_p),
            len(part.rows),
            len(given),
        )
        assert np.array_equal(given, expected), part.name
        state = expected


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("hard", [False, True])
def test_masked_kernels_as_plain_cpp(hard: bool, tmp_path: Path) -> None:
    """Random heads of size 2 under random masks, some of which hide the first token."""
    rng = np.random.default_rng(0)
    layers, n, row = 3, 3, (3, 2, 2, 2)  # layers, h, m, d
    mask = (rng.random((layers, n, n)) < 0.4) | np.eye(n, dtype=bool)
    stack = AttentionStack(
        *(rng.normal(size=size) for size in (row, row[:3], row, row, row)), mask=mask
    )
    rule = "hardmax" if hard else "softmax"
    spec = ef.ArchitectureSpec(n, 2, 2, 2, 4, rule, "relu", positional=False)
    (part,) = pack((Stage("masked", "", attention=stack),), spec)
    assert part.masked
    assert not mask[:, :, 0].all()
    x = rng.normal(size=(9, n, 2))
    expected = cpu.run((part,), x)
    library = as_plain_cpp(part, n, 2, tmp_path)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (part.rows, x)]
    library.all(*pointers, layers, len(x))
    assert np.array_equal(x, expected)


def test_a_layer_too_wide_for_shared_memory_is_refused() -> None:
    wide = PackedLayers("wide", "feed-forward", np.zeros((1, 4000)), (1000,), special=False)
    with pytest.raises(NumberKindError, match="Move x to the CPU"):
        cuda.source(wide, 2, 1, "double")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["positional", "equivariant", "urpe", "sparse"])
def test_gpu_equals_cpu(kind: str) -> None:
    target = soft_attention(2, 2) if kind == "equivariant" else prefix_mean(3, 1)
    grid = 4 if kind == "equivariant" else 8
    built = ef.construct(target, grid=grid, method=method_of(kind, softened=True))
    x = np.random.default_rng(0).random((1000, target.seq_len, target.d_model))
    expected = built.network(x)
    for count in (1, 31, 1000):
        y = built.network(torch.from_numpy(x[:count]).cuda())
        assert y.is_cuda
        assert np.abs(y.cpu().numpy() - expected[:count]).max() <= 1e-12
    method = method_of(kind, softened=False)
    modified = ef.construct(target, grid=4, method=method).network
    rounded = modified.in_float64(allow_rounding=True)
    y = rounded(torch.from_numpy(x).cuda()).cpu().numpy()
    assert np.array_equal(y, rounded(x))
