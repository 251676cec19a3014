"""The literal executor on the CPU: every block, in order, nothing short-cut.

Sequences are lanes: the state of a chunk is (n, d, lanes), and every operation runs over
the lanes, so that it vectorises without reordering a single sum. The order of operations
for a sequence is the same for any number of lanes, chunks and threads: results are
bit-identical for any batch size. No fast-math.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from typing import Any

import numba
import numpy as np

from everyformer.model.execute.pack import PackedLayers
from everyformer.progress import Progress, no_progress

LANES = 64
"""Sequences of a chunk: enough for vector units, few enough for the first-level cache."""

WIDE = 16
"""From this hidden width on sizes are not constants of the compiled code."""

WIDE_STATE = 5
"""The same for the width of a token: networks with many registers have layers of many
sizes, and each kernel takes a second to compile."""

SINGLE_COST = 1 / 10
"""A sequence alone takes about a tenth of the time of a full chunk (measured)."""

Kernel = Callable[[np.ndarray, np.ndarray], None]


def run(
    layers: tuple[PackedLayers, ...],
    x: np.ndarray,
    *,
    dtype: type = np.float64,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> np.ndarray:
    """Run packed layers on sequences.

    Args:
        layers: The network.
        x: Shape (count, n, d), positions added.
        dtype: float64 or float32, for weights and state.
        threads: How many; all cores by default.
        progress: Called after every chunk.

    Returns:
        Shape (count, n, d).
    """
    rows = [np.ascontiguousarray(run.rows, dtype=dtype) for run in layers]
    state = x.astype(dtype)
    chunks = _chunks(len(state))

    def work(start: int, stop: int) -> None:
        lanes = 1 if stop - start == 1 else LANES
        chunk = np.zeros((*state.shape[1:], lanes), dtype=dtype)
        chunk[..., : stop - start] = np.moveaxis(state[start:stop], 0, -1)
        for run, weights in zip(layers, rows, strict=True):
            kernel_for(run, state.shape[1], state.shape[2], lanes)(weights, chunk)
        state[start:stop] = np.moveaxis(chunk[..., : stop - start], -1, 0)

    in_threads(work, chunks, threads, progress)
    return state


def in_threads(
    work: Callable[[int, int], None],
    chunks: list[tuple[int, int]],
    threads: int | None = None,
    progress: Progress = no_progress,
) -> None:
    """Call work(start, stop) for every chunk, on several threads; kernels drop the GIL."""
    workers = min(threads or os.cpu_count() or 1, len(chunks))
    if workers <= 1:
        for done, chunk in enumerate(chunks, start=1):
            work(*chunk)
            progress("run the network", done, len(chunks))
        return
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, *chunk) for chunk in chunks]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                progress("run the network", done, len(chunks))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _chunks(count: int) -> list[tuple[int, int]]:
    """Full chunks; the rest as one more chunk, or one by one where that is cheaper."""
    full = count - count % LANES
    chunks = [(start, start + LANES) for start in range(0, full, LANES)]
    rest = count - full
    if rest * SINGLE_COST >= 1:
        return [*chunks, (full, count)]
    return chunks + [(k, k + 1) for k in range(full, count)]


def kernel_for(run: PackedLayers, n: int, d: int, lanes: int) -> Kernel:
    """The compiled kernel for layers of these sizes; compiled once, cached on disk."""
    wide = d >= WIDE_STATE
    if run.kind == "attention":
        if wide and not (run.special or run.relative or run.masked):
            return _wide_attention(run.sizes[1], lanes)
        kinds = (run.special, run.relative, run.masked)
        return _attention_kernel(n, d, *run.sizes, lanes, *kinds)
    if (wide or run.sizes[0] >= WIDE) and not run.special:
        return _wide_kernel(lanes)
    return _feed_forward_kernel(n, d, *run.sizes, lanes, run.special)


def _jit(function: Callable[..., None]) -> Callable[..., None]:
    compiled: Any = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return compiled


@numba.njit(nogil=True, cache=True, inline="never")
def _exp(value: Any) -> Any:
    # A call that is not inlined is not vectorised: one lane and 64 lanes get equal bits.
    return np.exp(value)


@lru_cache
def _feed_forward_kernel(n: int, d: int, r: int, lanes: int, piecewise: bool) -> Kernel:
    """Equation 2 for every row of weights; sizes are constants of the compiled code."""
    B_1, W_2 = r * d, r * d + r
    B_2 = W_2 + d * r
    BREAKS = B_2 + d
    CLOSED, SLOPES = BREAKS + 2 * r, BREAKS + 4 * r
    INTERCEPTS = SLOPES + 3 * r

    def feed_forward(w: np.ndarray, z: np.ndarray) -> None:
        hidden = np.empty((r, lanes), z.dtype)
        zero = z.dtype.type(0)
        for layer in range(w.shape[0]):
            for j in range(n):
                for k in range(r):
                    for s in range(lanes):
                        t = w[layer, k * d] * z[j, 0, s]
                        for i in range(1, d):
                            t += w[layer, k * d + i] * z[j, i, s]
                        t += w[layer, B_1 + k]
                        if piecewise:
                            at = BREAKS + 2 * k
                            shut = CLOSED + 2 * k
                            piece = 2
                            if t < w[layer, at] or (
                                t == w[layer, at] and w[layer, shut] != zero
                            ):
                                piece = 0
                            elif t < w[layer, at + 1] or (
                                t == w[layer, at + 1] and w[layer, shut + 1] != zero
                            ):
                                piece = 1
                            slope = w[layer, SLOPES + 3 * k + piece]
                            hidden[k, s] = slope * t + w[layer, INTERCEPTS + 3 * k + piece]
                        else:
                            hidden[k, s] = t if t > zero else zero
                for i in range(d):
                    for s in range(lanes):
                        u = w[layer, W_2 + i * r] * hidden[0, s]
                        for k in range(1, r):
                            u += w[layer, W_2 + i * r + k] * hidden[k, s]
                        z[j, i, s] += u + w[layer, B_2 + i]

    return _jit(feed_forward)


@lru_cache
def _wide_kernel(lanes: int) -> Kernel:
    """Equation 2 with ReLU for layers of any size, one hidden unit at a time.

    Every sum is in the order of `_feed_forward_kernel`: in a constructed network the terms
    of neighbouring units cancel, and a product of matrices would add them in other orders.
    Products with weights that are 0 are left out, which changes no sum of finite numbers.
    """

    def feed_forward(w: np.ndarray, z: np.ndarray) -> None:
        n, d = z.shape[0], z.shape[1]
        update = np.empty((n, d, lanes), z.dtype)
        hidden = np.empty(lanes, z.dtype)
        zero = z.dtype.type(0)
        r = (w.shape[1] - d) // (2 * d + 1)
        B_1, W_2 = r * d, r * d + r
        for layer in range(w.shape[0]):
            update[:] = zero
            for k in range(r):
                bias = w[layer, B_1 + k]
                for j in range(n):
                    hidden[:] = zero
                    for i in range(d):
                        weight = w[layer, k * d + i]
                        if weight != zero:
                            for s in range(lanes):
                                hidden[s] += weight * z[j, i, s]
                    for s in range(lanes):
                        t = hidden[s] + bias
                        hidden[s] = t if t > zero else zero
                    for i in range(d):
                        column = w[layer, W_2 + i * r + k]
                        if column != zero:
                            for s in range(lanes):
                                update[j, i, s] += column * hidden[s]
            for j in range(n):
                for i in range(d):
                    for s in range(lanes):
                        z[j, i, s] += update[j, i, s] + w[layer, W_2 + d * r + i]

    return _jit(feed_forward)


@lru_cache
def _attention_kernel(
    n: int,
    d: int,
    h: int,
    m: int,
    lanes: int,
    hard: bool,
    relative: bool,
    masked: bool,
) -> Kernel:
    """Equation 1 for every row of weights; sizes are constants of the compiled code."""
    B_Q, W_K = m * d, m * d + m
    W_V, W_O = W_K + m * d, W_K + 2 * m * d
    B_V, GAIN = W_O + d * m, W_O + d * m + m
    HEAD = GAIN + 2 * n - 1 if relative else B_V
    MASK = h * HEAD

    def attention(w: np.ndarray, z: np.ndarray) -> None:
        query = np.empty((n, m, lanes), z.dtype)
        key = np.empty((n, m, lanes), z.dtype)
        value = np.empty((n, m, lanes), z.dtype)
        scores = np.empty((n, lanes), z.dtype)
        mixed = np.empty((m, lanes), z.dtype)
        update = np.empty((n, d, lanes), z.dtype)
        zero, one = z.dtype.type(0), z.dtype.type(1)
        start = z.dtype.type(-np.inf) if masked else zero
        for layer in range(w.shape[0]):
            update[:] = zero
            for head in range(h):
                at = head * HEAD
                for j in range(n):
                    for a in range(m):
                        for s in range(lanes):
                            q, k, v = zero, zero, zero
                            for i in range(d):
                                q += w[layer, at + a * d + i] * z[j, i, s]
                                k += w[layer, at + W_K + a * d + i] * z[j, i, s]
                                v += w[layer, at + W_V + a * d + i] * z[j, i, s]
                            query[j, a, s] = q - w[layer, at + B_Q + a]
                            key[j, a, s] = k
                            if relative:
                                v += w[layer, at + B_V + a]
                            value[j, a, s] = v
                for i in range(n):
                    for s in range(lanes):
                        top = start
                        for j in range(n):
                            if masked and w[layer, MASK + i * n + j] == zero:
                                continue
                            score = zero
                            for a in range(m):
                                score += query[i, a, s] * key[j, a, s]
                            scores[j, s] = score
                            if j == 0 or score > top:
                                top = score
                        total = zero
                        for j in range(n):
                            if masked and w[layer, MASK + i * n + j] == zero:
                                scores[j, s] = zero
                            elif hard:
                                scores[j, s] = one if scores[j, s] == top else zero
                            else:
                                scores[j, s] = _exp(scores[j, s] - top)
                            total += scores[j, s]
                        for a in range(m):
                            mixed[a, s] = zero
                            for j in range(n):
                                share = scores[j, s] / total
                                if relative:
                                    share *= w[layer, at + GAIN + i - j + n - 1]
                                mixed[a, s] += share * value[j, a, s]
                        for c in range(d):
                            part = zero
                            for a in range(m):
                                part += w[layer, at + W_O + c * m + a] * mixed[a, s]
                            update[i, c, s] += part
            for j in range(n):
                for c in range(d):
                    for s in range(lanes):
                        z[j, c, s] += update[j, c, s]

    return _jit(attention)


def _wide_attention(m: int, lanes: int) -> Kernel:
    """Equation 1 with softmax for layers of any size; every sum as in `_attention_kernel`.

    Products with weights that are 0 are left out, as in `_wide_kernel`.
    """
    kernel = _any_attention(lanes)
    return lambda w, z: kernel(w, z, m)


@lru_cache
def _any_attention(lanes: int) -> Callable[[np.ndarray, np.ndarray, int], None]:
    def project(w: np.ndarray, at: int, z: np.ndarray, to: np.ndarray) -> None:
        zero = z.dtype.type(0)
        n, d, m = z.shape[0], z.shape[1], to.shape[1]
        for j in range(n):
            for a in range(m):
                to[j, a, :] = zero
                for i in range(d):
                    weight = w[at + a * d + i]
                    if weight != zero:
                        for s in range(lanes):
                            to[j, a, s] += weight * z[j, i, s]

    projected = _jit(project)

    def attention(w: np.ndarray, z: np.ndarray, m: int) -> None:
        n, d = z.shape[0], z.shape[1]
        B_Q, W_K = m * d, m * d + m
        W_V, W_O = W_K + m * d, W_K + 2 * m * d
        HEAD = W_O + d * m
        query = np.empty((n, m, lanes), z.dtype)
        key = np.empty((n, m, lanes), z.dtype)
        value = np.empty((n, m, lanes), z.dtype)
        scores = np.empty((n, lanes), z.dtype)
        top, total = np.empty(lanes, z.dtype), np.empty(lanes, z.dtype)
        mixed = np.empty((m, lanes), z.dtype)
        part = np.empty(lanes, z.dtype)
        update = np.empty((n, d, lanes), z.dtype)
        zero = z.dtype.type(0)
        for layer in range(w.shape[0]):
            update[:] = zero
            for at in range(0, w.shape[1], HEAD):
                row = w[layer]
                projected(row, at, z, query)
                projected(row, at + W_K, z, key)
                projected(row, at + W_V, z, value)
                for j in range(n):
                    for a in range(m):
                        bias = row[at + B_Q + a]
                        for s in range(lanes):
                            query[j, a, s] -= bias
                for i in range(n):
                    for j in range(n):
                        scores[j, :] = zero
                        for a in range(m):
                            for s in range(lanes):
                                scores[j, s] += query[i, a, s] * key[j, a, s]
                        for s in range(lanes):
                            if j == 0 or scores[j, s] > top[s]:
                                top[s] = scores[j, s]
                    total[:] = zero
                    for j in range(n):
                        for s in range(lanes):
                            scores[j, s] = _exp(scores[j, s] - top[s])
                            total[s] += scores[j, s]
                    mixed[:] = zero
                    for j in range(n):
                        for s in range(lanes):
                            scores[j, s] /= total[s]
                        for a in range(m):
                            for s in range(lanes):
                                mixed[a, s] += scores[j, s] * value[j, a, s]
                    for c in range(d):
                        part[:] = zero
                        for a in range(m):
                            weight = row[at + W_O + c * m + a]
                            if weight != zero:
                                for s in range(lanes):
                                    part[s] += weight * mixed[a, s]
                        for s in range(lanes):
                            update[i, c, s] += part[s]
            for j in range(n):
                for c in range(d):
                    for s in range(lanes):
                        z[j, c, s] += update[j, c, s]

    return _jit(attention)
