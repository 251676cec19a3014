"""Run the operations of an exported module on affine functions of the tokens.

What comes out is the module itself, for *all* tokens, in real arithmetic: the numbers that
it holds are the rationals that they are. An operation that is not in the table, or does not
keep entries affine, ends the run.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from everyformer.checks.own_attention.forms import Forms, NotAffine

Rule = Callable[..., Any]

SAME = frozenset(
    ["clone", "detach", "alias", "contiguous", "lift_fresh_copy", "dropout", "_to_copy"]
)
"""Operations that change nothing; dropout is not in training."""


def run_affine(program: ExportedProgram) -> Forms:
    """The output of a program of one input, entry by entry, as functions of the input.

    Raises:
        NotAffine: If they are not affine, or an operation is not known here.
    """
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION):
            raise NotAffine(f"it changes {spec.target or 'its state'} when it is run")
    inputs = {spec.arg.name: spec for spec in signature.input_specs}
    given = next(s for s in signature.input_specs if s.kind == InputKind.USER_INPUT)
    values: dict[str, Any] = {}
    entries = 0
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name == given.arg.name:
            entries = node.meta["val"].numel()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node.name] = _input(program, node, inputs[node.name], entries)
        elif node.op == "call_function":
            values[node.name] = _call(node, values, entries)
        elif node.op == "output":
            for spec, arg in zip(signature.output_specs, node.args[0], strict=True):
                if spec.kind == OutputKind.USER_OUTPUT:
                    found = values[arg.name]
                    if isinstance(found, Forms):
                        return found
    raise NotAffine("the output is not a tensor of numbers")


def _input(program: ExportedProgram, node: Any, spec: Any, entries: int) -> Any:
    if spec.kind == InputKind.USER_INPUT:
        return Forms.tokens(tuple(int(size) for size in node.meta["val"].shape))
    held = program.state_dict.get(spec.target)
    if held is None:
        held = program.constants.get(spec.target)
    if not isinstance(held, torch.Tensor):
        raise NotAffine(f"{spec.target} is not a tensor")
    return _lifted(held.detach(), entries)


def _lifted(value: Any, entries: int) -> Any:
    """Tensors of numbers as forms; of integers and truth values as they are."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
        return Forms.constant(value.numpy(), entries)
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        raise NotAffine(f"numbers are {value.dtype}, not float64")
    return value


def _call(node: Any, values: dict[str, Any], entries: int) -> Any:
    args, kwargs = _resolved(node.args, values), _resolved(dict(node.kwargs), values)
    if getattr(node.target, "namespace", "") != "aten":
        raise NotAffine(f"the operation {node.target} is not known")
    name = node.target.__name__.split(".")[0]
    moving = any(isinstance(one, Forms) for one in _flat((args, kwargs)))
    result = node.meta.get("val")
    if not moving:
        return _lifted(_of_integers(node, name, args, kwargs), entries)
    if isinstance(result, torch.Tensor) and result.dtype != torch.float64:
        raise NotAffine(f"{name} gives {result.dtype}, not float64")
    rule = RULES.get(name)
    if name in SAME:
        if name == "dropout" and args[2:] != [False]:
            raise NotAffine("dropout draws random numbers: call .eval()")
        return args[0]
    if rule is None:
        raise NotAffine(f"the operation {name} is not known")
    try:
        found = rule(*args, **kwargs)
    except (TypeError, ValueError, IndexError) as error:
        raise NotAffine(f"the operation {name} has other arguments ({error})") from error
    if isinstance(result, torch.Tensor) and found.shape != tuple(result.shape):
        raise NotAffine(f"the operation {name} gave another shape")
    return found


def _of_integers(node: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What does not depend on numbers: made of nothing, or of integers, exactly.

    Raises:
        NotAffine: If it is random, or float64 might round it.
    """
    result = node.meta.get("val")
    held = [one for one in _flat((args, kwargs)) if isinstance(one, torch.Tensor)]
    if not isinstance(result, torch.Tensor) or "empty" in name:
        raise NotAffine(f"the operation {name} is not known")
    rounded = bool(held) and result.is_floating_point() and name != "_to_copy"
    if rounded or torch.Tag.nondeterministic_seeded in node.target.tags:
        raise NotAffine(f"the operation {name} is not known")
    return node.target(*args, **kwargs)


def _resolved(args: Any, values: dict[str, Any]) -> Any:
    if isinstance(args, torch.fx.Node):
        return values[args.name]
    if isinstance(args, (list, tuple)):
        return [_resolved(one, values) for one in args]
    if isinstance(args, dict):
        return {key: _resolved(one, values) for key, one in args.items()}
    return args


def _flat(args: Any) -> list[Any]:
    if isinstance(args, dict):
        args = list(args.values())
    if isinstance(args, (list, tuple)):
        return [inner for one in args for inner in _flat(one)]
    return [args]


def _form(value: Any, like: Forms) -> Forms:
    """A number or a tensor of integers as a form."""
    if isinstance(value, Forms):
        return value
    numbers = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if numbers.dtype == bool:
        raise NotAffine("a truth value is used as a number")
    return Forms.constant(numbers, like.entries)


def _pair(a: Any, b: Any) -> tuple[Forms, Forms]:
    like = a if isinstance(a, Forms) else b
    return _form(a, like), _form(b, like)


def _add(a: Any, b: Any, *, alpha: Any = 1) -> Forms:
    first, second = _pair(a, b)
    return first + second * _form(alpha, first)


def _sub(a: Any, b: Any, *, alpha: Any = 1) -> Forms:
    return _add(a, b, alpha=-alpha)


def _mul(a: Any, b: Any) -> Forms:
    first, second = _pair(a, b)
    return first * second


def _div(a: Any, b: Any) -> Forms:
    first, second = _pair(a, b)
    return first * second.inverse()


def _linear(x: Forms, weight: Forms, bias: Forms | None = None) -> Forms:
    found = x.matmul(_transpose(weight, -1, -2))
    return found if bias is None else found + bias


def _matmul(a: Forms, b: Forms) -> Forms:
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise NotAffine("a product of vectors is not known")
    return a.matmul(b)


def _attention(
    query: Forms,
    key: Forms,
    value: Forms,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: Any = None,
) -> Forms:
    """scaled_dot_product_attention: its scale only multiplies scores that are constant."""
    if causal or (mask is not None and not isinstance(mask, Forms)):
        raise NotAffine("a mask is not known")
    if dropout != 0:
        raise NotAffine("dropout_p is not 0: attention drops weights even after .eval()")
    size = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.matmul(_transpose(key, -1, -2))
    if scale is None and ((scores.centre != 0) | (scores.radius != 0)).any():
        raise NotAffine("scores that are not 0 are divided by a root")
    scores = scores * _form(float(size), scores)
    return (scores if mask is None else scores + mask).softmax(-1).matmul(value)


def _each(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Forms], Forms]:
    return lambda form: Forms(change(form.centre), change(form.radius))


def _softmax(a: Forms, axis: int, *_: Any) -> Forms:
    return a.softmax(axis)


def _transpose(a: Forms, first: int = 0, second: int = 1) -> Forms:
    rank = len(a.shape)
    return _each(lambda held: np.swapaxes(held, first % rank, second % rank))(a)


def _view(a: Forms, shape: list[int], **_: Any) -> Forms:
    size = int(np.prod(a.shape))
    known = int(np.prod([one for one in shape if one != -1]))
    full = [size // known if one == -1 else one for one in shape]
    return _each(lambda held: held.reshape(*full, a.entries + 1))(a)


def _permute(a: Forms, order: list[int]) -> Forms:
    rank = len(a.shape)
    axes = (*(axis % rank for axis in order), rank)
    return _each(lambda held: held.transpose(axes))(a)


def _expand(a: Forms, sizes: list[int], **_: Any) -> Forms:
    missing = len(sizes) - len(a.shape)
    own = (*(1,) * missing, *a.shape)
    full = [have if want == -1 else want for have, want in zip(own, sizes, strict=True)]
    return _each(lambda held: np.broadcast_to(held, (*full, a.entries + 1)))(a)


def _unsqueeze(a: Forms, axis: int) -> Forms:
    where = axis % (len(a.shape) + 1)
    return _each(lambda held: np.expand_dims(held, where))(a)


def _squeeze(a: Forms, axis: int) -> Forms:
    where = axis % len(a.shape)
    return _each(lambda held: held.squeeze(where))(a) if a.shape[where] == 1 else a


def _select(a: Forms, axis: int, index: int) -> Forms:
    where = axis % len(a.shape)
    return _each(lambda held: held.take(index, axis=where))(a)


def _slice(
    a: Forms,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Forms:
    cut = [slice(None)] * len(a.shape)
    cut[axis % len(a.shape)] = slice(start, end, step)
    return _each(lambda held: held[tuple(cut)])(a)


def _cat(parts: list[Forms], axis: int = 0) -> Forms:
    where = axis % len(parts[0].shape)
    return Forms(
        np.concatenate([one.centre for one in parts], axis=where),
        np.concatenate([one.radius for one in parts], axis=where),
    )


def _index(a: Forms, indices: list[torch.Tensor | None]) -> Forms:
    if any(one is None for one in indices):
        raise NotAffine("an index that leaves out axes is not known")
    at = tuple(one.numpy() for one in indices if one is not None)
    return _each(lambda held: held[at])(a)


def _sum(a: Forms, axes: list[int] | None = None, keep: bool = False, **_: Any) -> Forms:
    return a.sum(axes or range(len(a.shape)), keep=keep)


def _mean(a: Forms, axes: list[int] | None = None, keep: bool = False, **_: Any) -> Forms:
    where = axes or list(range(len(a.shape)))
    count = int(np.prod([a.shape[axis] for axis in where]))
    share = np.full((1,), Fraction(1, count), dtype=object)
    return a.sum(where, keep=keep).scaled(share, share * 0)


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": Forms.__neg__,
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "scaled_dot_product_attention": _attention,
    "softmax": _softmax,
    "_softmax": _softmax,
    "exp": Forms.exp,
    "relu": Forms.relu,
    "sum": _sum,
    "mean": _mean,
    "t": _transpose,
    "transpose": _transpose,
    "permute": _permute,
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "expand": _expand,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "select": _select,
    "slice": _slice,
    "cat": _cat,
    "index": _index,
}
"""Operations of torch on forms, by their names."""
