"""Traced arrays do what numpy's arrays do."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Float, jaxtyped

from everyformer.targets.trace import trace

Function = Callable[[Any], Any]
N, D = 2, 3
ROW = np.array([0.5, -2.0, 3.0])
SQUARE = np.array([[1.0, 0.1, 0.0], [0.0, 2.0, -3.0], [0.5, 0.0, 1.0]])
MASK = np.array([True, False, True])


def agrees(function: Function) -> None:
    x = np.random.default_rng(5).uniform(0.25, 3, (40, N, D))
    with np.errstate(all="ignore"):
        wanted = function(x.copy())
    found = trace(function, N, D, [0.5] * D, [2.0] * D)(x)
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)


UFUNCS: dict[str, Function] = {
    "add": lambda x: x + 1.5,
    "subtract": lambda x: 1 - x,
    "multiply": lambda x: ROW * x,
    "divide": lambda x: 1 / x + x / 3,
    "negative": lambda x: -x,
    "positive": lambda x: +x,
    "absolute": lambda x: abs(x - 1) + np.fabs(1 - x),
    "square": np.square,
    "reciprocal": np.reciprocal,
    "integer powers": lambda x: x**3 + x**-2 + x**0 + x**1 + x**2.0 + x**4,
    "powers, one for each entry": lambda x: x ** np.array([1, 2, 3]),
    "roots": lambda x: x**0.5 + x**-0.5 + x**1.5 + np.sqrt(x),
    "powers of a constant": lambda x: 2**x + 0.3 ** (1 + x),
    "exp": lambda x: np.exp(x) + np.exp2(x) + np.expm1(x),
    "log": lambda x: np.log(x) + np.log2(x) + np.log10(x) + np.log1p(x),
    "sin": lambda x: np.sin(x) + np.cos(x) + np.tan(x / 9),
    "tanh": lambda x: np.tanh(x) + np.sinh(x) + np.cosh(x),
    "two arguments": lambda x: np.hypot(x, 2) + np.logaddexp(x, x[..., ::-1]),
    "maximum": lambda x: np.maximum(x, 1) + np.fmax(x, ROW),
    "minimum": lambda x: np.minimum(x, 1) + np.fmin(ROW, x),
    "matmul": lambda x: x @ SQUARE + np.array([[1, 2], [3, 4]]) @ x,
    "matmul with itself": lambda x: x @ np.swapaxes(x, -1, -2) @ x,
    "reduce": lambda x: x + np.add.reduce(x, axis=1, keepdims=True),
    "reduce, two axes": lambda x: x * np.maximum.reduce(x, axis=(1, 2), keepdims=True),
    "accumulate": lambda x: (
        np.add.accumulate(x, axis=-1) * np.multiply.accumulate(x, axis=1)
    ),
    "accumulate extremes": lambda x: (
        np.maximum.accumulate(x, axis=-1) - np.minimum.accumulate(x, axis=1)
    ),
    "outer": lambda x: np.multiply.outer(x, [1.0, 2.0])[..., 1],
    "where and out": lambda x: np.divide(x, ROW * MASK, out=np.ones_like(x), where=MASK),
}

FUNCTIONS: dict[str, Function] = {
    "sum": lambda x: x + np.sum(x, axis=-1, keepdims=True) + x.sum(-2, keepdims=True),
    "sum of some": lambda x: x + x.sum(-1, keepdims=True, initial=2, where=MASK),
    "sum without an axis kept": lambda x: x + x.sum((-1, -2))[:, None, None],
    "mean": lambda x: x - x.mean(-2, keepdims=True) * np.mean(x, (1, 2), keepdims=True),
    "prod": lambda x: x * x.prod(-1, keepdims=True) + np.prod(x, axis=1, keepdims=True),
    "max": lambda x: x.max(-1, keepdims=True) + np.amax(x, axis=1, keepdims=True) + 0 * x,
    "max with a beginning": lambda x: x + x.max(-1, keepdims=True, initial=1.25),
    "min": lambda x: x.min(-1, keepdims=True) + np.min(x, axis=1, keepdims=True) + 0 * x,
    "cumsum": lambda x: np.cumsum(x, axis=-1) + x.cumsum(-2),
    "cumprod": lambda x: x.cumprod(-2),
    "cumprod of rows": partial(np.cumprod, axis=-1),
    "sort": lambda x: x + np.sort(x) + np.sort(x, axis=1),
    "clip": lambda x: x.clip(0.6, 1) + np.clip(x, None, 1.5) + np.clip(x, 1, None),
    "clip a constant": lambda x: np.clip(1.0, x, x + 1),
    "roll": lambda x: np.roll(x, 1, axis=-1) + np.roll(x, -1, axis=(1, 2)),
    "flip": lambda x: np.flip(x, -1) * np.flip(x, axis=(1, 2)),
    "broadcast_to": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x[:, :1], np.zeros((N, 1)))[0] + x,
    "reshape": lambda x: x.reshape(-1, D * N)[:, ::-1].reshape(x.shape),
    "reshape, as a function": lambda x: np.reshape(x, (len(x), D, N)).reshape((-1, N, D)),
    "ravel": lambda x: x.ravel().reshape(x.shape),
    "ravel, as a function": lambda x: np.reshape(np.ravel(x), x.shape),
    "flatten": lambda x: x.flatten().reshape(x.shape),
    "transpose": lambda x: np.transpose(x, (0, 2, 1)).transpose(0, 2, 1) + x.T.T + x.mT.mT,
    "swapaxes": lambda x: np.swapaxes(x.swapaxes(-1, -2), 1, 2),
    "moveaxis": lambda x: np.moveaxis(np.moveaxis(x, -1, 0) * 2, 0, -1),
    "expand_dims": lambda x: np.squeeze(np.expand_dims(x, 1), 1) + x[:, None].squeeze(1),
    "stack": lambda x: np.stack([x[..., 2], x[..., 0], np.ones(x.shape[:2])], axis=-1),
    "concatenate": lambda x: np.concatenate([x[..., 1:], x[..., :1] ** 2], axis=-1),
    "take": lambda x: np.take(x, [2, 0, 1], axis=-1) + x.take([1, 0], axis=1),
    "einsum": lambda x: np.einsum("bnd,bmd,dk->bnk", x, x, SQUARE),
    "einsum, better ordered": lambda x: np.einsum("bnd,de->bne", x, SQUARE, optimize=True),
    "dot": lambda x: np.dot(x, SQUARE) + x.dot(SQUARE) + np.inner(x, SQUARE),
    "tensordot": lambda x: np.tensordot(x, SQUARE, axes=1),
    "where on constants": lambda x: np.where(MASK, x, 0.25) + np.where(ROW > 0, 1, x**2),
    "full_like": lambda x: np.zeros_like(x) + 2 * np.ones_like(x) + np.full_like(x, 0.3),
    "diff": lambda x: np.diff(x, axis=-1, prepend=0),
    "var": lambda x: x + x.var(-1, keepdims=True) + np.var(x, 1, keepdims=True, ddof=1),
    "std": lambda x: x + x.std(-1, keepdims=True) + np.std(x, axis=(1, 2), keepdims=True),
    "tile": lambda x: np.tile(x[..., :1], (1, 1, D)) + np.repeat(x[:, :1], N, axis=1),
    "repeat": lambda x: x[..., :1].repeat(D, axis=-1),
    "split": lambda x: np.concatenate(np.split(x, D, axis=-1)[::-1], axis=-1),
    "array_split": lambda x: np.concatenate(np.array_split(x, 2, axis=-1)[::-1], axis=-1),
    "triangles": lambda x: np.triu(x) + np.tril(x) ** 2,
    "hstack": lambda x: np.hstack([x[:, 1:], x[:, :1]]),
    "dstack": lambda x: np.dstack([x[..., 1:], x[..., :1]]),
    "norm": lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    + np.linalg.norm(x, 1, axis=1, keepdims=True) + np.linalg.norm(x, np.inf, -1)[..., None]
    + np.linalg.norm(x, -np.inf, 2, keepdims=True)
    + np.linalg.norm(x, axis=(1, 2))[:, None, None]
    + np.linalg.norm(x[..., :1], 2, 1, keepdims=True),
    "norms of rows": lambda x: x + np.stack([
        np.stack([np.linalg.norm(row) + np.linalg.norm(row, 1) for row in y]) for y in x
    ])[..., None],
    "ptp": lambda x: x + np.ptp(x, axis=-1, keepdims=True) + np.ptp(x, 1)[:, None],
    "median": lambda x: x + np.median(x, -1, keepdims=True) + np.median(x, 1)[:, None]
    + np.stack([np.median(y) + np.median(y, keepdims=True) for y in x]),
    "average": lambda x: x + np.average(x, 1)[:, None] + np.average(x, 1, [1, 2])[:, None]
    + np.average(x, -1, [0.1, 0.2, 0.3], keepdims=True) + np.average(x, 1, x)[:, None],
    "polyval": lambda x: x + np.polyval([1, -2, 0.5], x) + np.polyval([], x),  # pyright: ignore[reportUnknownLambdaType]
    "interp": lambda x: x + np.interp(x, [0.75, 1, 1.75], [2, -1, 0.3], left=2)  # pyright: ignore[reportUnknownLambdaType]
    + np.interp(x, [1], [2]),
    "pad": lambda x: np.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    + np.pad(x, ((0, 0), (0, 0), (1, 1)), constant_values=2.5)[..., 2:]
    + np.pad(x, ((0, 0), (0, 0), (2, 0)), "reflect")[..., :-2]
    + np.pad(x, ((0, 0), (1, 0), (0, 0)), mode="edge")[:, 1:],
    "matrix_transpose": lambda x: np.matrix_transpose(np.matrix_transpose(x) * 2),
    "-inf": lambda x: np.exp(np.where(MASK, x, -np.inf) / 2 - 1) + np.maximum(x, -np.inf)
    + np.exp(np.minimum(2 * (x + -np.inf), x))
    + np.where(MASK, x, -np.inf).max(-1)[..., None],
    "shape": lambda x: x * np.shape(x)[1] * np.ndim(x) * x.ndim / x.shape[-1],
}  # fmt: skip


def assign_to_a_mask(x: Any) -> Any:
    y = x.copy()
    y[x > 1] = 0.5
    y[:, 1][x[:, 0] < 1] = 3
    y[(x < 0.75).any(-1)] = -1
    y[x == x[..., ::-1]] = np.float64(7)
    return y


def assign_integers(x: Any) -> Any:
    counts = (x > 1) * 3
    counts[:, 0] = x[:, 1] > 1.5
    counts[x > 1.9] = -2
    counts += np.where(x > 1.75, 1, 2)
    counts[counts > 3] = 7
    mask = x > 1
    mask[mask] = False
    return x + counts + mask if counts.dtype == int else x


def assign_masks(x: Any) -> Any:
    mask = x > 1
    mask[:, 0] = x[:, 1] < 1.5
    mask[..., :1] = True
    mask &= x < 2
    mask[x > 1.9] = False
    numbers = x.copy()
    numbers[:, 1] = mask[:, 1]
    return numbers + mask


def halved(x: Any) -> Any:
    x[...] = x / 2
    return x


CHOICES: dict[str, Function] = {
    "where": lambda x: np.where(x > 1, x**2, 0.25) + np.where(x < 1.5, 1, 2),
    "all comparisons": lambda x: (
        (x > 1) * 1.0 + 2 * (x >= 1) + 4 * (x < 1) + 8 * (x <= 1) + 16 * (x == 1)
        + 32 * (x != 1) + 64 * (x < 1) + 128 * (x <= 1) + 256 * (x > 1) + 512 * (x >= 1)
    ),
    "comparisons of entries": lambda x: np.where(x > x[:, ::-1], x, -x) + (x == x[..., :1]),
    "logic": lambda x: x * ((x > 1) & (x < 1.5) | ~(x > 0.75) ^ (x[..., ::-1] > 1.25)),
    "logic of numpy": lambda x: x * np.logical_or(
        np.logical_and(x > 1, x < 1.5), np.logical_not(np.logical_xor(x > 1, x > 1.7))
    ),
    "logic with constants": lambda x: x + ((x > 1) & MASK) + ((x < 1) | True),
    "counts": lambda x: x + (x > 1).sum(-1, keepdims=True) + (x > 1).mean(1)[:, None],
    "a count of one": lambda x: x + (x[..., :1] > 1).sum(-1, keepdims=True) * 2,
    "all and any": lambda x: np.where((x > 1).all(-1, keepdims=True), x, 2 * x)
    + np.any(x > 1.5, axis=(1, 2), keepdims=True),
    "masks as numbers": lambda x: (x > 1).astype(float) + (x > 1) * 1 + (1 - (x > 1)) / 2,
    "masks with small numbers beside x": lambda x: x * (x > 1) * np.uint8(200)
    + np.where(x > 1, x, np.float32(0.5)) + (x > 1) * np.int64(3) + (x > 1.5) * [1, 2, 3],
    "masks that are moved": lambda x: x * np.concatenate(
        [(x > 1)[..., 1:], (x < 1)[..., :1]], axis=-1
    ),
    "masks beside numbers": lambda x: np.concatenate([x[..., :2], x[..., :1] > 1], axis=-1),
    "sign": lambda x: np.sign(x - 1) + np.heaviside(x - 1.5, 0.5),
    "select": lambda x: np.select([x > 1.5, x > 1, MASK], [x, 2 * x, 1], default=-1),
    "nested": lambda x: np.where(x > 1, np.where(x > 1.5, x, 1), np.where(x > 0.75, 2, 3)),
    "where of masks": lambda x: x * np.where(x > 1, x > 1.5, x > 0.75),
    "matrices": lambda x: (x > 1) @ SQUARE + np.einsum("bnd,de->bne", x > 1.5, SQUARE),
    "dtypes": lambda x: x * (2 if (x > 1).dtype == bool and x.dtype == float else 1),
    "the branch not taken": lambda x: np.where(x > 1.25, np.log(np.maximum(x - 1, 0)), 0),
    "assignment to a mask": assign_to_a_mask,
    "assignment of masks": assign_masks,
    "assignment of integers": assign_integers,
    "integers": lambda x: x + np.cumsum(x > 1, -1) ** 2 - np.zeros_like((x > 1) * 1)
    + np.stack([(x > 1)[..., 0] * 2, (x > 1)[..., 1], (x < 1)[..., 2] * 1], axis=-1) / 4
    + np.mean((x > 1) * 2, -1, keepdims=True) + np.insert(x > 1, 0, True, 2)[..., 1:],
    "integers as floats": lambda x: np.reciprocal(1 + (x > 1) * 1.0)
    + halved(((x > 1) * 2).astype(float))
    + (x > 1).sum(-1, dtype=float, keepdims=True) * 1e30,
}  # fmt: skip


def assign(x: Any) -> Any:
    y = x.copy()
    y[..., 0] = x[..., 1] ** 2
    y[:, 1, 2] = 0.75
    y[:, :, MASK] += 1
    y *= 2
    y -= x
    y /= 1 + x
    y **= 2
    x[...] = 0  # a copy is a copy
    return y


def assign_to_a_view(x: Any) -> Any:
    view = x[:, :1]
    view += 10
    x[..., 1:][..., 0] = 7
    return x


def loop_over_entries(x: Any) -> Any:
    y = np.zeros_like(x)
    for b in range(len(x)):
        for j in range(x.shape[1]):
            entry = before = x[b, j, 0]
            entry += 1  # numpy's scalars do not change
            y[b, j] = entry * before
    return y


def maximum_in_place(x: Any) -> Any:
    y = x.copy()
    np.maximum(y, 1, out=y)
    y.sort(axis=-1)
    return y


@jaxtyped(typechecker=beartype)
def checks_its_argument(x: Float[np.ndarray, "b n d"]) -> Float[np.ndarray, "b n d"]:
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float64
    return x * 2


LANGUAGE: dict[str, Function] = {
    "indices": lambda x: x[:, [1, 0]][..., ::-1] + x[:, 0, None] + x[..., -1:],
    "masks": lambda x: x[..., [False, True, False]] + x[:, np.array([True, False])],
    "integer arrays": lambda x: x[:, [[0], [1]], [[1, 2, 0]]],
    "iteration": lambda x: np.stack([token * 2 for token in x]),
    "sum of Python": lambda x: x + sum(x[..., k : k + 1] for k in range(D)),
    "assignment": assign,
    "assignment to a view": assign_to_a_view,
    "loops": loop_over_entries,
    "in place": maximum_in_place,
    "type checks": checks_its_argument,
    "copies": lambda x: copy.copy(x) + copy.deepcopy(x) + x.astype(float) + x.astype("f8"),
    "scalars of numpy": lambda x: np.float64(2.5) * x + np.int64(3) / (x + np.float32(0.1)),
    "lists": lambda x: [1, 2, 3] + x * [[1], [2]],
    "truth values": lambda x: x * MASK + True,
    "nothing of x": lambda x: np.full(x.shape, 0.3),
    "integers": lambda x: np.ones(x.shape, dtype=int),
    "division by zero, not used": lambda x: np.where(MASK, x / (ROW * MASK), 0),
    "dtype": lambda x: x.sum(-1, dtype=np.float64, keepdims=True) + x,
}


@pytest.mark.parametrize("name", UFUNCS)
def test_functions_of_numbers(name: str) -> None:
    agrees(UFUNCS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_arrays(name: str) -> None:
    agrees(FUNCTIONS[name])


@pytest.mark.parametrize("name", CHOICES)
def test_comparisons_and_choices(name: str) -> None:
    agrees(CHOICES[name])
    x = np.random.default_rng(6).choice([0.5, 0.75, 1.0, 1.5, 1.75, 2.0], (200, N, D))
    with np.errstate(all="ignore"):
        wanted = np.asarray(CHOICES[name](x.copy()), np.float64)
    found = trace(CHOICES[name], N, D, [0.5] * D, [2.0] * D)(x)
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", LANGUAGE)
def test_what_programs_do_with_arrays(name: str) -> None:
    agrees(LANGUAGE[name])
