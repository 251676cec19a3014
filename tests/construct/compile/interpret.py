"""What a program computes, step by step in numpy: the oracle of the compiler's tests."""

from collections import Counter

import numpy as np

from everyformer.construct.compile.program import (
    Absolute,
    Attend,
    Constant,
    Exchange,
    ExponentialSum,
    Form,
    Function,
    Gather,
    Input,
    Maximum,
    Mean,
    Minimum,
    Mix,
    Normalise,
    Product,
    Program,
    Relu,
    Scale,
    Step,
    Unary,
)

Values = dict[Step, np.ndarray]
"""For each step its numbers, shape (*batch, n)."""


def interpret(program: Program, x: np.ndarray) -> np.ndarray:
    """The result for sequences x, shape (*batch, n, d)."""
    values: Values = {}
    for step in program.steps():
        values[step] = compute(step, values, x)
    columns = [evaluate(form, values, x) for form in program.outputs]
    return np.stack(columns, axis=-1)


def evaluate(form: Form, values: Values, x: np.ndarray) -> np.ndarray:
    """The numbers of a form, shape (*batch, n)."""
    total = np.full(x.shape[:-1], float(form.offset))
    for step, coefficient in form.terms.items():
        total = total + float(coefficient) * values[step]
    return total


def compute(step: Step, values: Values, x: np.ndarray) -> np.ndarray:
    """The numbers of one step, from those of the steps that it reads."""

    def read(form: Form) -> np.ndarray:
        return evaluate(form, values, x)

    match step:
        case Input():
            return x[..., step.channel]
        case Constant():
            return np.broadcast_to([float(c) for c in step.values], x.shape[:-1])
        case Mean():
            mean = read(step.value).mean(-1, keepdims=True)
            return np.broadcast_to(mean, x.shape[:-1])
        case Gather():
            return read(step.value)[..., list(step.tau)]
        case Mix():
            matrix = np.array([[float(a) for a in row] for row in step.matrix])
            return read(step.value) @ matrix.T
        case Unary():
            return apply(step.function, read(step.value))
        case Product():
            return read(step.first) * read(step.second)
        case Normalise():
            parts = np.stack([read(part) for part in step.group.parts])
            size = np.sqrt((parts**2).mean(0) + float(step.group.delta))
            return parts[step.index] / size
        case Attend():
            queries = np.stack([read(q) for q in step.queries], axis=-1)
            keys = np.stack([read(k) for k in step.keys], axis=-1)
            return attend(queries, keys, read(step.value))
        case ExponentialSum():
            queries = np.stack([read(q) for q in step.queries], axis=-1)
            keys = np.stack([read(k) for k in step.keys], axis=-1)
            weights = np.exp(queries @ np.swapaxes(keys, -1, -2))
            return np.einsum("...jk,...k->...j", weights, read(step.value))
        case Maximum():
            return np.maximum(read(step.first), read(step.second))
        case Minimum():
            return np.minimum(read(step.first), read(step.second))
        case Absolute():
            return np.abs(read(step.value))
        case Relu():
            return np.maximum(read(step.value), 0)
        case Exchange():
            mine = read(step.value)
            theirs = mine[..., list(step.tau)]
            return np.where(step.low, np.minimum(mine, theirs), np.maximum(mine, theirs))
        case Scale():
            return read(step.value) * np.array([float(c) for c in step.factors])
        case _:
            msg = f"{type(step).__name__} is not a step"
            raise TypeError(msg)


def attend(queries: np.ndarray, keys: np.ndarray, value: np.ndarray) -> np.ndarray:
    """sum_k softmax_k(q_j . k_k) v_k."""
    scores = queries @ np.swapaxes(keys, -1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("...jk,...k->...j", weights, value) / weights.sum(-1)


def apply(function: Function, t: np.ndarray) -> np.ndarray:
    """A function of one number, entry by entry."""
    if function.name == "pow":
        assert function.power is not None
        return np.power(t, float(function.power))
    if function.name == "logistic":
        return 1 / (1 + np.exp(-t))
    ufunc: np.ufunc = getattr(np, function.name)
    return ufunc(t)


def count(program: Program) -> dict[str, int]:
    """How many steps of each kind there are, without inputs and constants."""
    names = Counter(type(step).__name__ for step in program.steps())
    return {k: v for k, v in sorted(names.items()) if k not in {"Input", "Constant"}}
