"""Follow a module from its input to its output, operation by operation."""

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from everyformer.checks.following.exporting import NotFollowedError, export_honestly
from everyformer.checks.following.facts import (
    Facts,
    constant,
    tokens,
    unknown,
    weight,
)
from everyformer.checks.following.hearing import receptive_fields
from everyformer.checks.following.mirror import Kinds, with_mirror_images
from everyformer.checks.following.operations import apply
from everyformer.checks.following.registry import by_position, tensors_of

LARGEST_CONSTANT = 2**20

FAINT = -100.0
"""Known numbers below this, added to logits or put in their place, are meant as -inf."""


@dataclass(frozen=True)
class FiniteMask:
    """Numbers that are meant as -inf, and are not.

    Attributes:
        number: The largest of them.
        fields: Which tokens each token of the output would depend on, [n, n], if all of
            them were -inf; None where this is not known.
    """

    number: float
    fields: torch.Tensor | None

    def __str__(self) -> str:
        """In words."""
        return (
            f"the mask is finite ({self.number:.3g}): masked tokens keep a weight, which "
            "logits as large as that undo"
        )


@dataclass(frozen=True)
class Followed:
    """What following a module gave.

    Attributes:
        output: Facts of its output, or None if it could not be followed.
        obstacle: Why it could not be followed; "" if it could.
        mirrored: Whether reversing the tokens reverses the output, for all weights.
        finite_mask: Numbers that look like a mask but are finite; None without any. They
            prove nothing.
    """

    output: Facts | None
    obstacle: str = ""
    mirrored: bool = False
    finite_mask: FiniteMask | None = None

    @property
    def receptive_fields(self) -> torch.Tensor | None:
        """Which tokens each token of the output may depend on, [n, n]; or None."""
        if self.output is None:
            return None
        return receptive_fields(self.output.heard, self.output.shape[1])


class Calling(nn.Module):
    """A module with the call that feeds it tokens, as a module of one argument."""

    def __init__(self, module: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        """Keep both."""
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output for tokens of shape (1, n, d)."""
        return self.call(self.module, x)


def follow(
    module: nn.Module,
    call: Callable[..., torch.Tensor],
    x: torch.Tensor,
    redrawn: Sequence[nn.Module] = (),
) -> Followed:
    """Facts of the output of a module that hold for all weights and all inputs.

    The module is exported for the shape of x; control flow that depends on numbers, and
    operations without a rule, only lose facts.

    Args:
        module: Not in training.
        call: Called as call(module, x).
        x: An input of shape (1, n, d), n >= 2.
        redrawn: The module with other weights, given to it in several ways, and not run
            yet. What was exported must compute the same with these: constants may not be
            made of weights.
    """
    others = [Calling(one, call) for one in redrawn]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.export warns of its own workings
            program = export_honestly(Calling(module, call), x, others)
            walk = Walk(program)
            found = walk.run()
            again = found.output and Walk(program, Kinds()).run().output
            return replace(
                found,
                mirrored=bool(again and again.moves == frozenset({1})),
                finite_mask=finite_mask(walk),
            )
    except NotFollowedError as error:
        return Followed(None, obstacle=str(error))
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Followed(None, obstacle=f"export: {type(error).__name__}: {first[:200]}")


def finite_mask(walk: "Walk") -> FiniteMask | None:
    """Numbers that a module has in place of -inf, and what -inf would do.

    Args:
        walk: After its run.
    """
    if walk.faint is None:
        return None
    try:
        fields = Walk(walk.program, hiding=True).run().receptive_fields
    except Exception:  # such as 0 times -inf, where 0 times the number was 0
        fields = None
    return FiniteMask(walk.faint, fields)


class Walk:
    """Facts of every node of an exported program, in order.

    With `kinds`, `moves` is about the reversal of the tokens instead of all permutations.
    With `hiding`, known numbers below `FAINT` count as -inf: what follows then is not true
    of the module, but of another with such a mask.
    """

    def __init__(
        self, program: ExportedProgram, kinds: Kinds | None = None, *, hiding: bool = False
    ) -> None:
        """Facts are found by `run`, under the names of the nodes."""
        self.program = program
        self.kinds = kinds
        self.hiding = hiding
        self.faint: float | None = None
        self.facts: dict[str, Any] = {}

    def _known(self, value: torch.Tensor) -> Facts:
        """Facts of a tensor that is known; of a mask that is finite, its number is kept."""
        if not value.is_floating_point() or not bool((value < FAINT).any()):
            return constant(value)
        finite = value[(value < FAINT) & (value > -torch.inf)]
        if finite.numel():
            self.faint = max(self.faint or -math.inf, float(finite.max()))
        return constant(value.where(value >= FAINT, -torch.inf) if self.hiding else value)

    def run(self) -> Followed:
        """Follow all nodes; facts of the output."""
        inputs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                found = self._input(node, inputs[node.name])
                self.facts[node.name] = self._with_kinds(found, None, (), {})
            elif node.op == "call_function":
                self.facts[node.name] = self._call(node)
            elif node.op == "output":
                return self._output(node)
        return Followed(None, obstacle="export: no output")

    def _input(self, node: Any, spec: Any) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        shape = tuple(int(size) for size in value.shape)
        if spec.kind == InputKind.USER_INPUT:
            return tokens(shape)
        if spec.kind == InputKind.BUFFER:
            held = self._buffer(spec.target)
            changing = replace(weight(shape), blocked=None)
            return _careful(changing, value) if held is None else self._known(held)
        if spec.kind == InputKind.CONSTANT_TENSOR:
            held = self.program.constants[spec.target]
            return self._known(held) if isinstance(held, torch.Tensor) else weight(shape)
        return _careful(weight(shape), value)

    def _buffer(self, name: str) -> torch.Tensor | None:
        """The numbers of a buffer; None if the module writes into it."""
        outputs = self.program.graph_signature.output_specs
        if any(s.kind == OutputKind.BUFFER_MUTATION and s.target == name for s in outputs):
            return None
        held = self.program.state_dict.get(name, self.program.constants.get(name))
        return held if isinstance(held, torch.Tensor) else None

    def _call(self, node: Any) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(dict(node.kwargs))
        if node.target is operator.getitem:
            container, index = args
            if isinstance(container, list):
                return container[index]
        result = node.meta.get("val")
        if result is None:
            return None
        inputs = tensors_of((args, tuple(kwargs.values())))
        if not isinstance(result, torch.Tensor):
            return self._several(node.target, args, kwargs, inputs, result)
        shape = tuple(int(size) for size in result.shape)
        known = all(fact.value is not None for fact in inputs)
        if known and result.numel() <= LARGEST_CONSTANT and _is_function(node.target):
            found = self._known(node.target(*_values(args), **_values(kwargs)))
            return self._with_kinds(found, node.target, args, kwargs)
        given, named = args, kwargs
        if self.kinds is not None and getattr(node.target, "namespace", "") == "aten":
            given, named = by_position(node.target, args, kwargs)
            given = with_mirror_images(node.target, given, shape)
        try:
            found = apply(node.target, given, named, shape)
        except (TypeError, IndexError):  # other arguments, or a dimension of a number
            found = unknown(shape, inputs)
        return self._with_kinds(_careful(found, result), node.target, args, kwargs)

    def _with_kinds(self, fact: Any, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The same facts, with the kinds of a tensor that does not depend on the tokens."""
        if self.kinds is None or not isinstance(fact, Facts) or fact.depends:
            return fact
        if fact.value is not None:
            return replace(fact, kinds=self.kinds.of_constant(fact.value))
        if op is None:
            return replace(fact, kinds=self.kinds.of_weight(fact.shape))
        return replace(fact, kinds=self.kinds.of_result(op, args, kwargs, fact.shape))

    def _several(self, op: Any, args: Any, kwargs: Any, inputs: Any, result: Any) -> Any:
        if not isinstance(result, (list, tuple)):
            if any(fact.depends for fact in inputs):
                raise ValueError("a number is read off the input")
            if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise ValueError("a number is read off a weight")
            return result
        shapes = [None if r is None else tuple(int(s) for s in r.shape) for r in result]
        if op.__name__.split(".")[0] in ("split_with_sizes", "split", "chunk"):
            return apply(op, args, kwargs, shapes)
        return [None if shape is None else unknown(shape, inputs) for shape in shapes]

    def _resolve(self, args: Any) -> Any:
        if isinstance(args, torch.fx.Node):
            return self.facts[args.name]
        if isinstance(args, (list, tuple)):
            return [self._resolve(entry) for entry in args]
        if isinstance(args, dict):
            return {key: self._resolve(entry) for key, entry in args.items()}
        return args

    def _output(self, node: Any) -> Followed:
        specs = self.program.graph_signature.output_specs
        for spec, arg in zip(specs, node.args[0], strict=True):
            if spec.kind == OutputKind.USER_OUTPUT and isinstance(arg, torch.fx.Node):
                return Followed(self.facts[arg.name])
        return Followed(None, obstacle="export: the output is not a tensor")


def _careful(fact: Any, value: torch.Tensor) -> Any:
    """Unknown booleans may block anything; what is rounded has neither sums nor bounds.

    In float32 a sum is 1 to rounding still, and a bound is rounded as the numbers are.
    """
    if not isinstance(fact, Facts) or value.dtype == torch.float64:
        return fact
    if value.dtype == torch.float32:
        return replace(fact, least=float(torch.tensor(fact.least, dtype=torch.float32)))
    blocked = None if value.dtype == torch.bool else fact.blocked
    return replace(
        fact,
        blocked=blocked,
        sums_to_one=None,
        means=fact.means and not fact.weighs,
        least=-math.inf,
        hidden=None,
        silent=None,
        affine=False,
    )


def _is_function(op: Any) -> bool:
    """Whether an operation of torch gives the same numbers every time."""
    if "empty" in op.__name__ or getattr(op, "namespace", "") != "aten":
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ())


def _values(args: Any) -> Any:
    """Arguments with the numbers of known tensors."""
    if isinstance(args, Facts):
        return args.value
    if isinstance(args, list):
        return [_values(entry) for entry in args]
    if isinstance(args, dict):
        return {key: _values(entry) for key, entry in args.items()}
    return args
