"""The literal executor on the GPU: a thread for a sequence, weights streamed in tiles.

A kernel runs all layers of one kind that follow each other. The state of a sequence stays
in registers; the threads of a block bring the next tile of weights from memory while they
work on the present one, which lies in shared memory. Multiplications and additions are not
fused (`--fmad=false`), so that sums round as on the CPU.

The kernels are CUDA C++, compiled at run time by CuPy or, where it is missing, by the
compiler that PyTorch carries.
"""

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from everyformer.errors import NumberKindError
from everyformer.model.execute.pack import PackedLayers

TILE_BYTES = 20 * 1024
"""Weights of one tile; two tiles lie in shared memory."""

SHARED_BYTES = 48 * 1024
"""Shared memory that every CUDA device gives a block without being asked."""

THREADS = 96
"""Of a block: three warps hide each other's waits, and 12,288 tokens fill an H200."""

Launch = Callable[[int, int, list[Any]], None]

_SOURCE = r"""
typedef {scalar} T;
#define N {n}
#define D {d}
#define P {row}
#define TILE {tile}

{step}

extern "C" __global__ void run(
    const T* __restrict__ weights, T* __restrict__ state, int layers, int count)
{{
    __shared__ T tiles[2][TILE * P];
    const int sequence = blockIdx.x * blockDim.x + threadIdx.x;
    const bool present = sequence < count;
    T z[N * D];
    for (int e = 0; e < N * D; ++e)
        z[e] = present ? state[(long long)sequence * (N * D) + e] : (T)0;

    const long long total = (long long)layers * P;
    long long base = 0;
    for (int e = threadIdx.x; e < TILE * P; e += blockDim.x)
        tiles[0][e] = e < total ? weights[e] : (T)0;
    __syncthreads();
    int current = 0;
    for (int first = 0; first < layers; first += TILE) {{
        const long long next = base + TILE * P;
        for (int e = threadIdx.x; e < TILE * P; e += blockDim.x)
            if (next + e < total) {copy}
        {commit}
        const int here = layers - first < TILE ? layers - first : TILE;
        #pragma unroll 4
        for (int layer = 0; layer < here; ++layer)
            step(tiles[current] + layer * P, z);
        {wait}
        __syncthreads();
        current ^= 1;
        base = next;
    }}
    if (present)
        for (int e = 0; e < N * D; ++e)
            state[(long long)sequence * (N * D) + e] = z[e];
}}
"""

_FEED_FORWARD = r"""
#define R {r}
#define PIECEWISE {special}
__device__ __forceinline__ void step(const T* w, T* z)
{{
    const T *b1 = w + R * D, *w2 = b1 + R, *b2 = w2 + D * R;
    const T *breaks = b2 + D, *closed = breaks + 2 * R;
    const T *slopes = closed + 2 * R, *intercepts = slopes + 3 * R;
    #pragma unroll
    for (int j = 0; j < N; ++j) {{
        T update[D];
        #pragma unroll
        for (int k = 0; k < R; ++k) {{
            T t = w[k * D] * z[j * D];
            #pragma unroll
            for (int i = 1; i < D; ++i) t += w[k * D + i] * z[j * D + i];
            t += b1[k];
            T h;
            if (PIECEWISE) {{
                int piece = 2;
                if (t < breaks[2 * k] || (t == breaks[2 * k] && closed[2 * k] != 0))
                    piece = 0;
                else if (t < breaks[2 * k + 1]
                         || (t == breaks[2 * k + 1] && closed[2 * k + 1] != 0))
                    piece = 1;
                h = slopes[3 * k + piece] * t + intercepts[3 * k + piece];
            }} else {{
                h = t > 0 ? t : (T)0;
            }}
            #pragma unroll
            for (int i = 0; i < D; ++i)
                update[i] = k == 0 ? w2[i * R] * h : update[i] + w2[i * R + k] * h;
        }}
        #pragma unroll
        for (int i = 0; i < D; ++i) z[j * D + i] += update[i] + b2[i];
    }}
}}
"""

_ATTENTION = r"""
#define H {h}
#define M {m}
#define HARD {special}
#define RELATIVE {relative}
#define MASKED {masked}
#define HEAD (4 * M * D + M + (RELATIVE ? M + 2 * N - 1 : 0))
__device__ __forceinline__ void step(const T* row, T* z)
{{
    const T* mask = row + H * HEAD;
    T update[N * D];
    for (int e = 0; e < N * D; ++e) update[e] = 0;
    for (int head = 0; head < H; ++head) {{
        const T *wq = row + head * HEAD, *bq = wq + M * D;
        const T *wk = bq + M, *wv = wk + M * D, *wo = wv + M * D;
        const T *bv = wo + D * M, *gain = bv + M;
        T query[N * M], key[N * M], value[N * M];
        for (int j = 0; j < N; ++j)
            for (int a = 0; a < M; ++a) {{
                T q = 0, k = 0, v = 0;
                for (int i = 0; i < D; ++i) {{
                    q += wq[a * D + i] * z[j * D + i];
                    k += wk[a * D + i] * z[j * D + i];
                    v += wv[a * D + i] * z[j * D + i];
                }}
                query[j * M + a] = q - bq[a];
                key[j * M + a] = k;
                value[j * M + a] = RELATIVE ? v + bv[a] : v;
            }}
        for (int i = 0; i < N; ++i) {{
            T scores[N], top = 0, total = 0;
            bool seen = false;
            for (int j = 0; j < N; ++j) {{
                if (MASKED && mask[i * N + j] == 0) continue;
                T score = 0;
                for (int a = 0; a < M; ++a) score += query[i * M + a] * key[j * M + a];
                scores[j] = score;
                if ((MASKED ? !seen : j == 0) || score > top) top = score;
                seen = true;
            }}
            for (int j = 0; j < N; ++j) {{
                if (MASKED && mask[i * N + j] == 0) scores[j] = 0;
                else if (HARD) scores[j] = scores[j] == top ? 1 : 0;
                else scores[j] = exp(scores[j] - top);
                total += scores[j];
            }}
            T mixed[M];
            for (int a = 0; a < M; ++a) {{
                mixed[a] = 0;
                for (int j = 0; j < N; ++j) {{
                    T share = scores[j] / total;
                    if (RELATIVE) share *= gain[i - j + N - 1];
                    mixed[a] += share * value[j * M + a];
                }}
            }}
            for (int c = 0; c < D; ++c) {{
                T part = 0;
                for (int a = 0; a < M; ++a) part += wo[c * M + a] * mixed[a];
                update[i * D + c] += part;
            }}
        }}
    }}
    for (int e = 0; e < N * D; ++e) z[e] += update[e];
}}
"""

ASYNC_COPY = {
    "copy": 'asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: '
    '"r"((unsigned)__cvta_generic_to_shared(&tiles[current ^ 1][e])), '
    '"l"(weights + next + e), "n"(sizeof(T)));',
    "commit": 'asm volatile("cp.async.commit_group;");',
    "wait": 'asm volatile("cp.async.wait_group 0;");',
}


def source(
    run: PackedLayers, n: int, d: int, scalar: str, copy: dict[str, str] = ASYNC_COPY
) -> str:
    """CUDA C++ of the kernel for layers of these sizes.

    Args:
        run: The layers.
        n: Tokens of a sequence.
        d: Coordinates of a token.
        scalar: "double" or "float".
        copy: How weights come to shared memory; tests give C++ that any compiler reads.

    Raises:
        NumberKindError: If one layer's weights do not fit into shared memory twice.
    """
    row = run.rows.shape[1]
    size = 8 if scalar == "double" else 4
    if 2 * row * size > SHARED_BYTES:
        msg = (
            f"A layer of {run.name!r} has {row} numbers; the GPU kernel holds two layers "
            f"in {SHARED_BYTES} bytes of shared memory. Move x to the CPU."
        )
        raise NumberKindError(msg)
    special = int(run.special)
    if run.kind == "attention":
        h, m = run.sizes
        step = _ATTENTION.format(
            h=h,
            m=m,
            special=special,
            relative=int(run.relative),
            masked=int(run.masked),
        )
    else:
        step = _FEED_FORWARD.format(r=run.sizes[0], special=special)
    return _SOURCE.format(
        scalar=scalar,
        n=n,
        d=d,
        row=row,
        tile=max(1, TILE_BYTES // (size * row)),
        step=step,
        **copy,
    )


def run(
    layers: tuple[PackedLayers, ...], x: torch.Tensor, *, dtype: type = np.float64
) -> torch.Tensor:
    """Run packed layers on sequences that lie on the GPU.

    Args:
        layers: The network.
        x: Shape (count, n, d), positions added, on a CUDA device.
        dtype: float64 or float32, for weights and state.

    Returns:
        Shape (count, n, d), on the same device.
    """
    scalar, kind = (
        ("double", torch.float64) if dtype == np.float64 else ("float", torch.float32)
    )
    state = x.to(kind).contiguous().clone()
    count, n, d = state.shape
    if count == 0:
        return state
    with torch.cuda.device(x.device):
        for part in layers:
            # A feed-forward layer works on tokens alone: each is a sequence of one.
            alone = part.kind == "feed-forward"
            length, items = (1, count * n) if alone else (n, count)
            launch = _compiled(source(part, length, d, scalar))
            weights = _on_device(part, kind, x.device)
            launch(-(-items // THREADS), THREADS, [weights, state, len(part.rows), items])
    return state


_Stored = dict[tuple[int, torch.dtype, torch.device], tuple[np.ndarray, torch.Tensor]]
_WEIGHTS: _Stored = {}
_READ_BY_GRAPHS: _Stored = {}


def _on_device(part: PackedLayers, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """The weights on the GPU, kept for 256 parts; what a CUDA graph reads for good."""
    key = (id(part.rows), kind, device)
    held = _WEIGHTS.get(key)
    if held is None or held[0] is not part.rows:
        if len(_WEIGHTS) >= 256:
            _WEIGHTS.clear()
        tensor = torch.from_numpy(part.rows).to(device=device, dtype=kind)
        held = _WEIGHTS[key] = (part.rows, tensor)
    if torch.cuda.is_current_stream_capturing():  # a graph knows addresses alone
        _READ_BY_GRAPHS[key] = held
    return held[1]


@lru_cache
def _compiled(text: str) -> Launch:
    """Compile with CuPy, or with PyTorch's own run-time compiler.

    Raises:
        NumberKindError: If neither is there.
    """
    options = ("--fmad=false",)
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError:
        compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
        if compile_kernel is None:
            msg = (
                "The GPU executor compiles its kernel at run time and found neither CuPy "
                "nor a PyTorch that can. Install CuPy, or move x to the CPU."
            )
            raise NumberKindError(msg) from None
        kernel = compile_kernel(text, "run", nvcc_options=list(options))

        def launch(blocks: int, threads: int, args: list[Any]) -> None:
            kernel(grid=(blocks, 1, 1), block=(threads, 1, 1), args=args)

        return launch
    raw = cupy.RawKernel(text, "run", options=options)

    def adopt(stream: Any) -> Any:
        if hasattr(cupy.cuda.Stream, "from_external"):
            return cupy.cuda.Stream.from_external(stream)
        return cupy.cuda.ExternalStream(stream.cuda_stream)

    def launch_raw(blocks: int, threads: int, args: list[Any]) -> None:
        given = [a.data_ptr() if isinstance(a, torch.Tensor) else np.int32(a) for a in args]
        with adopt(torch.cuda.current_stream()):
            raw((blocks,), (threads,), given)

    return launch_raw
