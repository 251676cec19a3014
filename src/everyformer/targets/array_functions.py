"""The functions of arrays that a traced array goes through.

Most of them only move, add or multiply entries: numpy's own code does that to arrays of
terms. The others are written here with operations that expressions have.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyformer.targets import composed_functions as composed
from everyformer.targets.recorder import NO_MASK, Recorder

Function = Callable[..., Any]

_MOVES: tuple[Function, ...] = (
    np.append, np.array_split, np.atleast_1d, np.atleast_2d, np.atleast_3d,
    np.broadcast_arrays, np.broadcast_to, np.column_stack, np.concatenate, np.copy,
    np.delete, np.diag, np.diagonal, np.dsplit,
    np.dstack, np.expand_dims, np.flip, np.fliplr, np.flipud, np.hsplit, np.hstack,
    np.insert, np.matrix_transpose, np.moveaxis, np.ravel, np.repeat, np.reshape, np.roll,
    np.rollaxis, np.rot90, np.split, np.squeeze, np.stack, np.swapaxes, np.take,
    np.take_along_axis, np.tile, np.transpose, np.tril, np.triu, np.vsplit, np.vstack,
)  # fmt: skip
"""Safe with terms: they only move entries."""

_SUMS: tuple[Function, ...] = (
    np.cumprod, np.cumsum, np.diff, np.mean, np.prod, np.sum, np.trace,
)  # fmt: skip
"""Safe with terms: they add or multiply entries. Truth values become numbers first."""

_PRODUCTS: tuple[Function, ...] = (
    np.dot, np.einsum, np.inner, np.outer, np.tensordot,
)  # fmt: skip
"""Products of several arrays; constants become terms first, so that nothing is rounded."""


def check_dtype(recorder: Recorder, dtype: Any) -> None:
    """Refuse all kinds of numbers that would round float64.

    Raises:
        Refused: If values would be rounded or are not real.
    """
    if dtype is None:
        return
    kind = np.dtype(dtype)
    if kind.kind != "f" or kind.itemsize < 8:
        recorder.refuse(f"The conversion to {kind}", "It would round; use float64")


def check_wide(recorder: Recorder, *operands: Any) -> bool:
    """Refuse numbers that truth values are made, or meet, if these overflow early.

    What numpy makes of `mask * np.uint8(200)` is uint8 again, and the next sum overflows;
    in np.uint64 differences below 0 do.

    Returns:
        Whether numpy makes int64 of the operands.

    Raises:
        Refused: If the numbers have no sign, or less than 64 bits.
    """
    kind = _kind(operands)
    if kind is not None and (kind.kind == "u" or (kind.kind in "if" and kind.itemsize < 8)):
        why = "It would round or overflow; use np.int64 or np.float64"
        recorder.refuse(f"Arithmetic in {kind}", why)
    return kind is not None and kind.kind == "i"


def _kind(operands: Sequence[Any]) -> "np.dtype[Any] | None":
    """The dtype of what numpy makes of operands; None where these are no numbers."""
    kinds = [_own(one) for one in operands]
    known = kinds and all(kind is not None for kind in kinds)
    return np.result_type(*kinds) if known else None


def _own(one: Any) -> Any:
    """A number of Python; of anything else the dtype that it has as an array."""
    if isinstance(one, (list, tuple)):
        return _kind(one)
    kind = getattr(one, "dtype", one)
    return kind if isinstance(kind, (int, float, np.dtype)) else np.asarray(one).dtype


def _terms(on: Any, value: Any) -> Any:
    """The same arguments with arrays of terms in place of traced arrays."""
    if on.is_traced(value):
        return on.lift(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_terms(on, piece) for piece in value)
    return value


def _directly(function: Function) -> Function:
    def call(on: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.pop("dtype", None)
        check_dtype(on.recorder, dtype)
        given = [*args, *kwargs.values()]
        plain = None
        if _has(on, given, "bi"):  # asked before out= is written to
            zeros = {name: _zeros(on, value) for name, value in kwargs.items()}
            zeros |= {} if dtype is None else {"dtype": dtype}
            plain = function(*(_zeros(on, value) for value in args), **zeros)
        named = {name: _terms(on, value) for name, value in kwargs.items()}
        result = function(*(_terms(on, value) for value in args), **named)
        if plain is None:
            return on.like(result)
        if isinstance(result, (list, tuple)):
            pairs = zip(result, plain, strict=True)
            return type(result)(_of_dtype(on, function, *pair) for pair in pairs)
        if plain.dtype.kind == "i" and _has(on, given, "f"):
            what = f"The function numpy.{function.__name__} of integers and other numbers"
            on.recorder.refuse(what, "numpy would round these; make all of them float")
        return _of_dtype(on, function, result, plain)

    return call


def _has(on: Any, value: Any, kinds: str) -> bool:
    """Whether there are numbers of these kinds, traced where they are not floats."""
    if isinstance(value, (list, tuple)):
        return any(_has(on, piece, kinds) for piece in value)
    if on.is_traced(value) or (kinds == "f" and isinstance(value, np.ndarray | np.generic)):
        return value.dtype.kind in kinds
    return kinds == "f" and isinstance(value, float)


def _of_dtype(on: Any, function: Function, result: Any, plain: Any) -> Any:
    """What numpy made of terms, where it makes `plain` of numbers."""
    if isinstance(result, np.ndarray):
        if plain.dtype == bool:
            return on.like(_truths(on, function, result))
        for place, entry in np.ndenumerate(result):
            if getattr(entry, "boolean", False):
                result[place] = entry.as_number()
    return on.like(result, whole=check_wide(on.recorder, plain))


def _zeros(on: Any, value: Any) -> Any:
    """The same arguments with arrays of numbers in place of traced arrays."""
    if on.is_traced(value):
        return np.zeros(value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(_zeros(on, piece) for piece in value)
    return value


def _truths(on: Any, function: Function, result: np.ndarray) -> np.ndarray:
    """What numpy has as truth values, also the 0 and 1 that it puts beside terms."""
    if all(getattr(entry, "boolean", False) for entry in result.flat):
        return result  # itself: it may be a view
    terms = on.lift(result)
    for place, term in np.ndenumerate(terms):
        if not term.boolean and term.value not in {0, 1}:
            what = f"The function numpy.{function.__name__} of truth values and numbers"
            on.recorder.refuse(what, NO_MASK)
        terms[place] = term.truth()
    return terms


def _sums(function: Function) -> Function:
    def call(on: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
        if function is np.diff and on.is_traced(a) and a.dtype == bool:
            on.recorder.refuse("The function numpy.diff of truth values", NO_MASK)
        dtype = kwargs.pop("dtype", None)
        check_dtype(on.recorder, dtype)
        if on.is_traced(a) and a.dtype.kind in "bi":
            a = a.astype(np.int64 if dtype is None else np.float64)
        return _directly(function)(on, a, *args, **kwargs)

    return call


def _product(function: Function) -> Function:
    def call(on: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.pop("dtype", None)
        check_dtype(on.recorder, dtype)
        whole = check_wide(on.recorder, *(v for v in args if not isinstance(v, str)))
        lifted = [on.lift(v) if isinstance(v, np.ndarray) else v for v in args]
        arrays = [v for v in lifted if isinstance(v, np.ndarray)]
        if all(term.boolean for array in arrays for term in array.flat):
            on.recorder.refuse(f"A product of truth values ({function.__name__})", NO_MASK)
        return on.like(function(*lifted, **kwargs), whole=whole and dtype is None)

    return call


def _reduction(ufunc: np.ufunc) -> Function:
    def call(on: Any, a: Any, axis: Any = None, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            kwargs["out"] = out
        return ufunc.reduce(a, axis=axis, **kwargs)

    return call


def _clip(
    on: Any, a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **kwargs: Any
) -> Any:
    low, high = kwargs.pop("min", a_min), kwargs.pop("max", a_max)
    result = a if low is None else np.maximum(a, low)
    result = result if high is None else np.minimum(result, high)
    return np.positive(result, out=out, **kwargs)


def _sort(on: Any, a: Any, axis: int | None = -1, **kwargs: Any) -> Any:
    """Odd-even transposition: n rounds that order neighbours, n(n-1)/2 pairs in all."""
    if axis is None:
        a, axis = a.ravel(), 0
    result = np.copy(a)
    rows = np.moveaxis(result, axis, 0)
    for start in range(len(rows)):
        for k in range(start % 2, len(rows) - 1, 2):
            pair = rows[k], rows[k + 1]
            rows[k], rows[k + 1] = np.minimum(*pair), np.maximum(*pair)
    return result


def _var(
    on: Any,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int | float = 0,
    keepdims: bool = False,
) -> Any:
    check_dtype(on.recorder, dtype)
    mean = a.mean(axis, keepdims=True)
    total = ((a - mean) ** 2).sum(axis, keepdims=keepdims)
    return np.divide(total, max(a.size // mean.size - ddof, 0), out=out)


def _std(
    on: Any,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int | float = 0,
    keepdims: bool = False,
) -> Any:
    return np.sqrt(_var(on, a, axis, dtype, None, ddof, keepdims), out=out)


def _where(on: Any, condition: Any, *choices: Any) -> Any:
    if len(choices) != 2:
        why = "How many entries it has depends on x; use np.where(condition, a, b)"
        on.recorder.refuse("The function numpy.where of one argument", why)
    if on.is_traced(condition):
        return on.chosen(condition, *choices)
    whole = check_wide(on.recorder, *choices)
    terms = np.where(condition, *(on.lift(choice) for choice in choices))
    return on.like(terms, whole=whole)


def _select(on: Any, condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """The choice of the first condition that holds."""
    result = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        result = on.chosen(condition, choice, result)
    return result.copy()  # in the order of C, as numpy's


def _full_like(
    on: Any, a: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, **kwargs: Any
) -> Any:
    check_dtype(on.recorder, np.float64 if dtype is None else dtype)
    if dtype is None and on.is_traced(a) and a.dtype == bool:
        on.recorder.refuse("An array like one of truth values", "Give it a dtype: float")
    whole = dtype is None and on.is_traced(a) and a.dtype == np.int64
    if whole and not check_wide(on.recorder, fill_value):
        on.recorder.refuse("An array like one of integers", "Give it a dtype: float")
    terms = np.empty_like(on.lift(a), shape=shape, **kwargs)
    terms[...] = on.lift(fill_value)
    return on.like(terms, whole=whole)


def _filled_with(value: int) -> Function:
    def call(on: Any, a: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return _full_like(on, a, value, dtype, **kwargs)

    return call


def _of_shape(function: Function) -> Function:
    def call(on: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
        return function(_terms(on, a), *args, **kwargs)

    return call


FUNCTIONS: dict[Function, Function] = {
    **{function: _directly(function) for function in _MOVES},
    **{function: _sums(function) for function in _SUMS},
    **{function: _product(function) for function in _PRODUCTS},
    **{function: _of_shape(function) for function in (np.shape, np.ndim, np.size)},
    np.max: _reduction(np.maximum),
    np.min: _reduction(np.minimum),
    np.amax: _reduction(np.maximum),
    np.amin: _reduction(np.minimum),
    np.clip: _clip,
    np.sort: _sort,
    np.var: _var,
    np.std: _std,
    np.average: composed.average,
    np.interp: composed.interp,
    np.linalg.norm: composed.norm,
    np.median: composed.median,
    np.pad: composed.pad(_directly(np.pad)),
    np.polyval: composed.polyval,
    np.ptp: composed.ptp,
    np.where: _where,
    np.select: _select,
    np.all: _reduction(np.logical_and),
    np.any: _reduction(np.logical_or),
    np.full_like: _full_like,
    np.empty_like: _filled_with(0),
    np.zeros_like: _filled_with(0),
    np.ones_like: _filled_with(1),
}
"""For each function of arrays, what a traced array does: call(on, *args, **kwargs).

`on` is the `Lines` that the arrays belong to.
"""
