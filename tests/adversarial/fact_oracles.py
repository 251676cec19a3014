"""What is said of every tensor inside a module, compared with its numbers.

The operations are run one by one, with weights and tokens drawn at random, and each field
of `Facts` is tested by its definition: tokens are permuted, made equal, set to 0, or
moved one at a time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from everyformer.checks.following.facts import Facts
from everyformer.checks.following.mirror import Kinds
from everyformer.checks.following.walk import Walk

TOLERANCE, HUGE = 1e-7, 1e30
Values = dict[str, Any]


@dataclass(frozen=True)
class Violation:
    """A fact that is false: of which node, which field, and what was seen."""

    node: str
    fact: str
    seen: str = ""


@dataclass(frozen=True)
class Checked:
    """Facts that were compared with numbers, and those that were false."""

    claims: int
    violations: tuple[Violation, ...]


class Runs:
    """The numbers of all tensors of a program, for weights of one draw."""

    def __init__(self, walk: Walk, seed: int, spread: float = 1.0) -> None:
        self.walk, self.program = walk, walk.program
        source = torch.Generator().manual_seed(seed)
        self.given: Values = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind == InputKind.BUFFER:
                name = spec.target or ""
                constants = self.program.constants
                self.given[spec.arg.name] = self.program.state_dict.get(
                    name, constants.get(name)
                )
            elif spec.kind == InputKind.PARAMETER:
                held = self.program.state_dict[spec.target or ""]
                drawn = torch.randn(held.shape, generator=source, dtype=torch.float64)
                new = drawn.to(held.dtype) * spread
                self.given[spec.arg.name] = new if held.is_floating_point() else held
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                self.given[spec.arg.name] = self.program.constants[spec.target or ""]

    def on(self, x: torch.Tensor, held: Mapping[str, Any] | None = None) -> Values:
        """All values for tokens x; those of `held` are as given.

        Every operand is laid out in order: operators that were written for the strides of
        the export, as view and group norm, then run whatever the strides are here.
        """
        values: Values = {}

        def of(arg: Any) -> Any:
            if isinstance(arg, torch.fx.Node):
                value = values[arg.name]
                return value.contiguous() if isinstance(value, torch.Tensor) else value
            if isinstance(arg, (list, tuple)):
                return [of(entry) for entry in arg]
            return arg

        for node in self.program.graph.nodes:
            if held is not None and node.name in held:
                values[node.name] = held[node.name]
            elif node.op == "placeholder":
                values[node.name] = self.given.get(node.name, x)
            elif node.op == "call_function":
                kwargs = {key: of(entry) for key, entry in node.kwargs.items()}
                values[node.name] = node.target(*of(node.args), **kwargs)
        return values

    def means(self, values: Values) -> set[str]:
        """Nodes that are products with weights of sum 1."""
        found: set[str] = set()
        for node in self.program.graph.nodes:
            name = getattr(node.target, "__name__", "").split(".")[0]
            if name == "scaled_dot_product_attention":
                found.add(node.name)
            if name in ("matmul", "mm", "bmm"):
                a, b = (values[arg.name] for arg in node.args)
                if min(a.ndim, b.ndim) >= 2 and (_ones(a.sum(-1)) or _ones(b.sum(-2))):
                    found.add(node.name)
        return found


def _ones(sums: torch.Tensor) -> bool:
    return bool(((sums - 1).abs() < 1e-9).all())


def differs(a: torch.Tensor, b: torch.Tensor, tolerance: float = TOLERANCE) -> torch.Tensor:
    """Where two tensors differ by more than rounding; NaN is equal to NaN."""
    if torch.equal(a, b):
        return torch.zeros(a.shape, dtype=torch.bool)
    a, b = a.double(), b.double()
    size = a[a.isfinite()].abs().max() if bool(a.isfinite().any()) else torch.tensor(1.0)
    near = (a - b).abs() <= tolerance * size.clamp(min=1.0)
    return ~(near | (a == b) | (a.isnan() & b.isnan()))


def overflows(value: torch.Tensor) -> bool:
    """Facts hold but for overflow."""
    if not value.is_floating_point():
        return False
    finite = value[value.isfinite()]
    return bool(finite.numel()) and float(finite.abs().max()) > HUGE


def _past_overflow(runs: Runs, values: Values) -> set[str]:
    """Nodes that overflow, and all that is made of them."""
    found: set[str] = set()
    for node in runs.program.graph.nodes:
        value = values.get(node.name)
        large = isinstance(value, torch.Tensor) and overflows(value)
        if large or any(before.name in found for before in node.all_input_nodes):
            found.add(node.name)
    return found


def check_facts(walk: Walk, seed: int) -> Checked:
    """Compare the facts of every node with numbers, for the weights of a seed."""
    source = torch.Generator().manual_seed(seed + 1)
    runs = Runs(walk, seed, 1.0 if seed % 2 else 2.0)
    shape = next(
        walk.facts[spec.arg.name].shape
        for spec in walk.program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    )
    with torch.no_grad():
        oracle = _Oracle(runs, shape, source)
        found: list[Violation] = []
        claims = 0
        for name, fact, values in oracle.tensors():
            for statement, seen in oracle.statements(fact, values):
                claims += 1
                if seen:
                    found.append(Violation(name, statement, seen))
    return Checked(claims, tuple(found))


def check_mirror(program: Any, seed: int) -> Checked:
    """Compare what is said of the reversal of the tokens with numbers.

    A tensor that moves along some dimensions is turned round along them; one that does not
    depend on the tokens has equal entries where their kinds are equal.
    """
    walk = Walk(program, Kinds())
    walk.run()
    runs = Runs(walk, seed)
    specs = walk.program.graph_signature.input_specs
    names = [spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT]
    shape = walk.facts[names[0]].shape
    source = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(shape, generator=source, dtype=torch.float64)
    with torch.no_grad():
        values, turned, nearby = (runs.on(y) for y in (x, x.flip(1), x * (1 + 1e-12)))
    claims, found = 0, list[Violation]()
    for name, fact in walk.facts.items():
        if not isinstance(fact, Facts) or not isinstance(values[name], torch.Tensor):
            continue
        value = values[name]
        if fact.kinds is not None:
            claims += 1
            first = {
                int(kind): k for k, kind in reversed([*enumerate(fact.kinds.flatten())])
            }
            places = [first[int(kind)] for kind in fact.kinds.flatten()]
            if bool(differs(value.flatten(), value.flatten()[places], 0.0).any()):
                found.append(Violation(name, "kinds"))
        steady = not bool(differs(value, nearby[name]).any())
        if fact.depends and fact.moves is not None and steady:
            claims += 1
            wanted = value.flip(sorted(fact.moves))
            if bool(differs(wanted, turned[name]).any()):
                found.append(Violation(name, f"mirrored along {sorted(fact.moves)}"))
    return Checked(claims, tuple(found))


@dataclass(frozen=True)
class Seen:
    """One tensor in all runs."""

    base: torch.Tensor
    nearby: torch.Tensor
    permuted: list[torch.Tensor]
    equal: torch.Tensor
    equal_nearby: torch.Tensor
    equal_half: torch.Tensor
    zero: torch.Tensor
    moved: list[torch.Tensor]
    held: list[torch.Tensor]


class _Oracle:
    """Runs on tokens that are permuted, equal, zero and moved."""

    def __init__(self, runs: Runs, shape: tuple[int, ...], source: torch.Generator) -> None:
        def draw(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=source, dtype=torch.float64)

        n = shape[1]
        self.n = n
        self.walk = runs.walk
        x, one = draw(*shape), draw(1, 1, shape[2]).expand(shape)
        tiny = 1 + 1e-12 * draw(1, 1, 1)
        reverse = torch.arange(n).flip(0)
        self.orders = [reverse, torch.randperm(n, generator=source)]
        far = [x.clone() for _ in range(n)]
        for j in range(n):
            far[j][:, j] = draw(shape[2]) * 2
        base = runs.on(x)
        fixed = {name: base[name] for name in runs.means(base)}
        self.runs: dict[str, Any] = {
            "base": base,
            "nearby": runs.on(x * tiny),
            "permuted": [runs.on(x[:, order]) for order in self.orders],
            "equal": runs.on(one.clone()),
            "equal_nearby": runs.on(one * tiny),
            "equal_half": runs.on(one / 2),
            "zero": runs.on(torch.zeros_like(x)),
            "moved": [runs.on(y) for y in far],
            "held": [runs.on(y, fixed) for y in far],
        }
        tried = (base, self.runs["equal"], *self.runs["moved"])
        self.large = {name for run in tried for name in _past_overflow(runs, run)}

    def tensors(self) -> Iterator[tuple[str, Facts, Seen]]:
        """Every tensor with its facts, but for those made of numbers that are too large."""
        for name, facts in self.walk.facts.items():
            if name in self.large:
                continue
            if isinstance(facts, Facts):
                yield name, facts, Seen(**self._values(name))
            elif isinstance(facts, list):
                for k, fact in enumerate(facts):
                    if fact is None:
                        continue
                    yield f"{name}[{k}]", fact, Seen(**self._values(name, k))

    def _values(self, name: str, part: int | None = None) -> dict[str, Any]:
        def of(run: Any) -> Any:
            if isinstance(run, list):
                return [of(one) for one in run]
            return run[name] if part is None else run[name][part]

        return {kind: of(run) for kind, run in self.runs.items()}

    def statements(self, fact: Facts, seen: Seen) -> Iterator[tuple[str, str]]:
        """Each statement of a fact, and what contradicts it, if anything."""
        yield "shape", _if(tuple(seen.base.shape) != fact.shape, f"{seen.base.shape}")
        if tuple(seen.base.shape) != fact.shape:
            return
        yield from self._numbers(fact, seen)
        changed = [differs(seen.base, moved) for moved in seen.moved]
        if not fact.depends:
            yield "depends", _if(any(bool(c.any()) for c in changed), "it does")
        for dim in _longer(fact.copied, fact.shape):
            yield f"copied along {dim}", _spread(seen.base, dim)
        if not bool(differs(seen.equal, seen.equal_nearby).any()):
            for dim in _longer(fact.uniform, fact.shape):
                yield f"uniform along {dim}", _spread(seen.equal, dim)
            if fact.is_affine:
                chord = seen.equal.double() + seen.zero.double()
                bends = bool(differs(2 * seen.equal_half.double(), chord).any())
                yield "affine", _if(bends, "not affine on equal tokens")
        if fact.moves is not None and not bool(differs(seen.base, seen.nearby).any()):
            yield f"moves along {set(fact.moves)}", self._moves(fact.moves, seen)
        if fact.heard is not None:
            yield "heard", self._outside(changed, ((h.dim, h.by) for h in fact.heard))
        if fact.means and fact.depends and not fact.weighs:
            itself = torch.eye(self.n, dtype=torch.bool)
            fixed = [differs(seen.base, held) for held in seen.held]
            whole = [d for d in fact.rows or () if fact.shape[d] == self.n]
            yield "means", self._outside(fixed, ((d, itself) for d in whole))

    def _numbers(self, fact: Facts, seen: Seen) -> Iterator[tuple[str, str]]:
        """Statements about the numbers of one run."""
        runs = (seen.base, seen.equal, seen.zero, *seen.moved)
        if fact.zero:
            yield "zero", _if(bool((seen.zero != 0).any()), "not 0 at 0")
        if fact.value is not None:
            yield "value", _if(bool(differs(seen.base, fact.value).any()), "other numbers")
        if fact.blocked is not None and seen.base.is_floating_point():
            shut = fact.blocked.broadcast_to(fact.shape)
            good = (v.isfinite() | (shut & (v == -torch.inf)) for v in runs)
            bad = not all(bool(entries.all()) for entries in good)
            yield "blocked", _if(bad, "neither finite nor blocked")
        for name, mask, number in (
            ("hidden", fact.hidden, -torch.inf),
            ("silent", fact.silent, 0.0),
        ):
            if mask is not None and bool(mask.any()):
                where = mask.broadcast_to(fact.shape)
                bad = any(bool((v[where] != number).any()) for v in runs)
                yield name, _if(bad, f"not {number}")
        if fact.least > -torch.inf:
            small = any(bool((v < fact.least - 1e-12).any()) for v in runs)
            yield "least", _if(small, f"below {fact.least}")
        if fact.sums_to_one is not None:
            sums = [v.double().sum(fact.sums_to_one) for v in runs]
            bad = any(bool(differs(torch.ones_like(s), s).any()) for s in sums)
            yield "sums to 1", _if(bad, f"{sums[0].flatten()[:4].tolist()}")

    def _moves(self, moves: Iterable[int], seen: Seen) -> str:
        for order, found in zip(self.orders, seen.permuted, strict=True):
            wanted = seen.base
            for dim in moves:
                if wanted.shape[dim] != self.n:
                    return f"size {wanted.shape[dim]} along {dim}"
                wanted = wanted.index_select(dim, order)
            if bool(differs(wanted, found).any()):
                return f"by {float((wanted - found).abs().max()):.2g}"
        return ""

    def _outside(
        self, changed: list[torch.Tensor], allowed: Iterable[tuple[int, torch.Tensor]]
    ) -> str:
        """A token that some entry hears, although no slice of it may."""
        pairs = list(allowed)
        for j, change in enumerate(changed):
            may = torch.zeros(change.shape, dtype=torch.bool)
            for dim, by in pairs:
                shape = [1] * change.ndim
                shape[dim] = -1
                may = may | by[:, j].reshape(shape)
            if bool((change & ~may).any()):
                return f"an entry hears token {j}"
        return ""


def _if(bad: bool, seen: str) -> str:
    return seen if bad else ""


def _longer(dims: Iterable[int], shape: tuple[int, ...]) -> list[int]:
    return [dim for dim in dims if shape[dim] > 1]


def _spread(value: torch.Tensor, dim: int) -> str:
    first = value.narrow(dim, 0, 1).expand(value.shape)
    return _if(bool(differs(first, value).any()), "not constant")
