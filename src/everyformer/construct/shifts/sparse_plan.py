"""What the sparse construction will cost, and which patterns it refuses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from everyformer.construct.grid_plan import StageCount
from everyformer.construct.shifts.assembly import description, network_of, proof_steps
from everyformer.construct.shifts.plan import ShiftPlan, count_stages, plan_shifts
from everyformer.construct.shifts.sparse import sparse_ids, sparse_shifts
from everyformer.construct.shifts.sparse_constants import (
    SparseConstants,
    SparseVariant,
    lifted,
)
from everyformer.construct.table import Table
from everyformer.errors import GridError, PatternError
from everyformer.model.network import Network
from everyformer.papers import YUN2020B, implements
from everyformer.patterns.assumption_1 import assumption_1
from everyformer.patterns.pattern import Pattern
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target
from everyformer.verdict import Verdict


@dataclass(frozen=True, repr=False)
class SparsePlan(ShiftPlan):
    """The cost of a sparse Transformer by formula.

    Attributes:
        sparse: The constants, with pattern and path.
    """

    sparse: SparseConstants

    @property
    def label(self) -> str:
        """The construction in few words."""
        return f"{super().label}, {self.sparse.pattern.name}, {self.sparse.variant}"

    @property
    def source(self) -> str:
        """Whose theorem and whose proof it is, in words."""
        return f"{super().label}, own proof"

    @property
    def path(self) -> str:
        """gamma, 1-based, in words."""
        gamma = self.sparse.gamma
        if gamma == tuple(range(len(gamma))):
            return "the identity"
        return " ".join(str(token + 1) for token in gamma)

    def network(self, table: Table, progress: Progress = no_progress) -> Network:
        """The network that computes a table."""
        c = lifted(self.sparse, table)
        ids = sparse_ids(c, table.columns)
        steps = proof_steps(c, sparse_shifts, table, ids)
        made = description(self.sparse, self.target, ids)
        return network_of(self.architecture, made, c, steps, progress)

    def rows(self) -> Iterator[tuple[str, str]]:
        """The stages, the pattern and the path."""
        yield from super().rows()
        c = self.sparse
        counts = " / ".join(f"{count:,}" for count in c.pattern.connections)
        yield "patterns p, hops s", f"{c.pattern.p}, {c.s}"
        yield "path gamma", self.path
        yield f"connections (dense {c.n**2:,})", counts
        yield "C of the max shifts", f"{c.C:,}" if c.C < 10**18 else f"{float(c.C):.1e}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        c = self.sparse
        return super().to_json() | {
            "pattern": c.pattern.to_json(),
            "path": [token + 1 for token in c.gamma],
            "hops": c.s,
            "variant": c.variant,
            "connections": list(c.pattern.connections),
            "max_factor": str(c.C),
        }


@implements(YUN2020B, "Theorem 1")
def plan_sparse(
    target: Target,
    grid: int,
    pattern: Pattern,
    *,
    gamma: tuple[int, ...] | None = None,
    variant: str = "wide",
    softened: bool = True,
    spacing: int | None = None,
) -> ShiftPlan:
    """Count the layers and parameters of a sparse Transformer; nothing is built.

    Args:
        target: The function; it may treat positions differently.
        grid: K, cells per axis.
        pattern: A^1, .., A^p. It must satisfy Assumption 1.
        gamma: A Hamiltonian path, 0-based; by default one is searched for.
        variant: "wide", or "sweep" with K^d times as many layers in Stage A.
        softened: The real network in ST^{2,1,4} (softmax, ReLU), or the modified one.
        spacing: Distance of positions in units of delta: K + 1, or K.

    Raises:
        PatternError: If the pattern is for another number of tokens, or does not satisfy
            Assumption 1, naming the clause.
        GridError: If the grid is not an integer >= 2, or there is no such variant.
    """
    if variant not in get_args(SparseVariant):
        known = " and ".join(repr(name) for name in get_args(SparseVariant))
        msg = f"variant={variant!r} does not exist with a pattern: there are {known}."
        raise GridError(msg)
    if not isinstance(pattern, Pattern):
        msg = (
            f"pattern={pattern!r:.60} is not a pattern but of type "
            f"{type(pattern).__name__}. Give one of everyformer.patterns, such as "
            "patterns.star(n), or patterns.from_masks, from_edges or from_graph of yours."
        )
        raise PatternError(msg)
    if pattern.n != target.seq_len:
        msg = (
            f"The pattern {pattern.name!r} is for {pattern.n} tokens, but {target.name} "
            f"has seq_len={target.seq_len}. Give a pattern for {target.seq_len} tokens."
        )
        raise PatternError(msg)
    path, hops = path_and_hops(pattern, gamma)
    plan = plan_shifts(target, grid, softened=softened, positional=True, spacing=spacing)
    architecture = replace(plan.architecture, pattern=pattern)
    if target.seq_len == 1:  # no other token to hear: the dense network, as it is
        return replace(plan, architecture=architecture)
    dense = plan.constants
    c = SparseConstants(
        grid=dense.grid,
        theorem="Theorem 1",
        softened=softened,
        spacing=dense.spacing,
        pattern=pattern,
        gamma=path,
        s=hops,
        variant=cast("SparseVariant", variant),
    )
    stages = tuple(_stages(c))
    return SparsePlan(target.name, plan.shape, architecture, stages, None, c, c)


def path_and_hops(
    pattern: Pattern, gamma: tuple[int, ...] | None
) -> tuple[tuple[int, ...], int]:
    """gamma and s of a pattern that satisfies Assumption 1.

    Raises:
        PatternError: If it does not, or is not known to, naming the clause.
    """
    found = assumption_1(pattern, gamma)
    if found.verdict is not Verdict.PROVED or found.path is None or found.hops is None:
        wrong = [str(one) for one in found.clauses if one.verdict is not Verdict.PROVED]
        known = ", or give gamma=... if you know a path"
        searched = found.clauses[1].verdict is Verdict.UNKNOWN
        msg = (
            f"The pattern {pattern.name!r} does not satisfy Assumption 1, which the "
            f"construction needs: {'; '.join(wrong) or found.clauses[2].reason}. Use "
            f"another pattern{known if searched else ''}."
        )
        raise PatternError(msg)
    return found.path, found.hops


def _stages(c: SparseConstants) -> list[StageCount]:
    """The stages of the dense network with positions, with other attention layers."""
    heads = 2 * (3 * c.d + 1)
    attention = [
        StageCount("chain shifts", c.chain_layers, True, heads + 2, "attention"),
        StageCount("max shifts", c.s, True, 2 * 3 * c.d + 1, "attention"),
    ]
    if c.padding:
        attention.insert(0, StageCount("padding", c.padding, False, heads, "attention"))
    dense = list(count_stages(c))
    shifts = [k for k, stage in enumerate(dense) if stage.kind == "attention"]
    return [*dense[: shifts[0]], *attention, *dense[shifts[-1] + 1 :]]
