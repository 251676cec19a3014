"""Compiled networks written by hand, head by head, with whatever claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.adversarial.compile_measuring import Distances, measure

import everyformer as ef
from everyformer.certify.compile.prove import prove_program
from everyformer.certify.proof import Proof
from everyformer.construct.certificates import as_stored
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.compiled import CompiledProgram
from everyformer.model.registers import Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.targets.box import Box

Form = Mapping[int, float]


@dataclass(frozen=True)
class Head:
    """Rows of W_Q, W_K, W_V; q's constants; (register, factor) for each value."""

    claim: dict[str, Any]
    queries: Sequence[tuple[Form, float]]
    keys: Sequence[Form]
    values: Sequence[Form] = ()
    writes: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Unit:
    """relu(form + offset), times a factor, to a register."""

    form: Form
    offset: float
    register: int
    factor: float


@dataclass
class Hand:
    """A network by hand; registers 0 .. d-1 are the input."""

    target: Callable[[np.ndarray], np.ndarray]
    n: int
    d: int
    width: int
    start: Mapping[int, Any] = field(default_factory=dict[int, Any])
    prefix: np.ndarray | None = None
    blocks: list[tuple[list[Head], list[Unit], list[dict[str, Any]]]] = field(
        default_factory=list[tuple[list[Head], list[Unit], list[dict[str, Any]]]]
    )
    out: Sequence[Form] = ()
    macros: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    coefficients: dict[str, Any] = field(default_factory=dict[str, Any])
    domain: tuple[float, float] = (0.0, 1.0)
    sorting: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def block(
        self,
        heads: Sequence[Head] = (),
        units: Sequence[Unit] = (),
        claims: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.blocks.append((list(heads), list(units), list(claims)))

    def rows(self, forms: Sequence[Form], count: int) -> np.ndarray:
        array = np.zeros((count, self.width))
        for k, form in enumerate(forms):
            for register, c in form.items():
                array[k, register] = c
        return array

    def network(self) -> ef.Network:
        w, n = self.width, self.n
        stages: list[Stage] = []
        for b, (heads, units, _) in enumerate(self.blocks):
            attention = feed_forward = None
            if heads:
                m = max(max(len(h.queries), len(h.values)) for h in heads)
                W_O = np.zeros((len(heads), w, m))
                b_Q = np.zeros((len(heads), m))
                for k, head in enumerate(heads):
                    for c, (_, offset) in enumerate(head.queries):
                        b_Q[k, c] = -offset
                    for c, (register, factor) in enumerate(head.writes):
                        W_O[k, register, c] = factor
                attention = AttentionStack(
                    np.stack([self.rows([q for q, _ in h.queries], m) for h in heads])[
                        None
                    ],
                    b_Q[None],
                    np.stack([self.rows(h.keys, m) for h in heads])[None],
                    np.stack([self.rows(h.values, m) for h in heads])[None],
                    W_O[None],
                )
            if units:
                W_2 = np.zeros((w, len(units)))
                for k, unit in enumerate(units):
                    W_2[unit.register, k] = unit.factor
                feed_forward = FeedForwardStack(
                    self.rows([u.form for u in units], len(units))[None],
                    np.array([[u.offset for u in units]]),
                    W_2[None],
                    np.zeros((1, w)),
                )
            stages.append(Stage(f"block {b}", "by hand", attention, feed_forward))
        start = np.zeros((n, w))
        for register, values in self.start.items():
            start[:, register] = values
        W_in = np.zeros((w, self.d))
        W_in[: self.d] = np.eye(self.d)
        sizes = [s.attention.W_Q.shape[1:3] for s in stages if s.attention is not None]
        hidden = [s.feed_forward.W_1.shape[1] for s in stages if s.feed_forward is not None]
        P = 0 if self.prefix is None else len(self.prefix)
        spec = ArchitectureSpec(
            seq_len=n, d_model=self.d,
            num_heads=max((h for h, _ in sizes), default=1),
            d_head=max((m for _, m in sizes), default=1),
            d_ff=max(hidden, default=1),
            normaliser="softmax", activation="relu", positional=False,
            width=w, num_prefix=P,
        )  # fmt: skip
        claims = {
            "blocks": [
                {"heads": [h.claim for h in heads], "units": list(said)}
                for heads, _, said in self.blocks
            ],
            "macros": self.macros,
            "coefficients": self.coefficients,
            "sorting": self.sorting,
        }
        ends = tuple((end,) * self.d for end in self.domain)
        held = Registers(W_in, start, self.rows(self.out, self.d), self.prefix)
        return ef.Network(
            spec, tuple(stages), registers=held,
            program=CompiledProgram("by hand", ends[0], ends[1], claims),
        )  # fmt: skip

    @property
    def box(self) -> Box:
        return Box.per_coordinate([self.domain], self.d)

    def prove(self) -> Proof:
        f = ef.Target(self.target, self.n, self.d, domain=[self.domain]).expression
        assert f is not None
        return prove_program(as_stored(self.network()), self.box, f, None)

    def refused(self) -> str:
        proof = self.prove()
        return "; ".join(map(str, proof.obstacles)) if proof.real is None else ""

    def measured(self, seed: int = 0) -> Distances:
        f = ef.Target(self.target, self.n, self.d, domain=[self.domain]).expression
        assert f is not None
        return measure(f, self.box, self.network(), np.random.default_rng(seed))

    def bounds(self) -> tuple[float, float]:
        proof = self.prove()
        assert proof.real is not None, proof.obstacles
        assert proof.float64 is not None
        return float(proof.real.value), float(proof.float64.value)

    def is_honest(self) -> bool:
        """Whether the proof is refused, or holds for every run that was tried."""
        if self.refused():
            return True
        (real, run), found = self.bounds(), self.measured()
        return found.real <= real and found.run <= run
