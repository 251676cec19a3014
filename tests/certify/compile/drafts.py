"""Compiled networks taken apart, so that a test can change one thing and prove again."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import everyformer as ef
from everyformer.certify.compile.prove import prove_program
from everyformer.certify.proof import Proof
from everyformer.certify.weights import RegisterWeights, Weights
from everyformer.construct.certificates import as_stored
from everyformer.numerics.expression import Expression


@dataclass
class Draft:
    """Weights with arrays and claims of their own, and f."""

    target: ef.Target
    network: ef.Network
    weights: Weights
    f: Expression

    @classmethod
    def of(cls, target: ef.Target, tol: float = 1e-6) -> "Draft":
        built = ef.construct(target, tol=tol, method="compile")
        assert target.expression is not None
        return cls(target, built.network, own(as_stored(built.network)), target.expression)

    @property
    def claims(self) -> dict[str, Any]:
        return self.weights.program

    @property
    def held(self) -> RegisterWeights:
        assert self.weights.registers is not None
        return self.weights.registers

    def array(self, block: int, name: str) -> np.ndarray:
        """An array of a block, without its layer axis; a view."""
        number = -1
        for stage in self.weights.stages:
            number += not stage.same_block
            if number == block and name in stage.arrays:
                return stage.arrays[name][0]
        raise KeyError(name)

    def prove(self, f: Expression | None = None) -> Proof:
        return prove_program(self.weights, self.target.domain, f or self.f, None)

    def refused(self, f: Expression | None = None) -> str:
        """What stops the proof; "" if nothing does."""
        proof = self.prove(f)
        if proof.real is not None:
            return ""
        return "; ".join(str(one) for one in proof.obstacles)

    def bound(self) -> float:
        proof = self.prove()
        assert proof.real is not None, proof.obstacles
        assert proof.float64 is not None
        return float(proof.float64.value)

    def run(self) -> ef.Network:
        """The network with the arrays as they are now."""
        arrays: dict[str, np.ndarray] = {
            "registers.W_in": self.held.W_in,
            "registers.start": self.held.start,
            "registers.W_out": self.held.W_out,
        }
        if self.held.prefix is not None:
            arrays["registers.prefix"] = self.held.prefix
        number = -1
        for stage in self.weights.stages:
            number += not stage.same_block
            for name, array in stage.arrays.items():
                arrays[f"stages.{number}.{stage.half}.{name}"] = array
        return self.network.with_arrays(arrays)

    def measured(self, points: int = 2000) -> float:
        """The largest gap of a float64 run from f, at random points and corners."""
        rng = np.random.default_rng(0)
        n, d = self.target.seq_len, self.target.d_model
        cube = rng.random((points, n, d))
        cube[: points // 4] = np.round(cube[: points // 4])
        box = self.target.domain
        low, high = np.asarray(box.lows), np.asarray(box.highs)
        x = low + (high - low) * cube
        return float(np.abs(self.run()(x) - self.f(x)).max())


def own(weights: Weights) -> Weights:
    """The same weights in arrays that may be changed."""
    held = weights.registers
    assert held is not None
    prefix = None if held.prefix is None else held.prefix.copy()
    registers = RegisterWeights(
        held.W_in.copy(), held.start.copy(), held.W_out.copy(), prefix
    )
    stages = tuple(
        replace(stage, arrays={k: a.copy() for k, a in stage.arrays.items()})
        for stage in weights.stages
    )
    program = copy.deepcopy(weights.program)
    return replace(weights, registers=registers, stages=stages, program=program)


def head_claims(draft: Draft, step: str) -> list[tuple[int, int, dict[str, Any]]]:
    """All heads of a kind, as (block, head, claim)."""
    return [
        (b, h, claim)
        for b, block in enumerate(draft.claims["blocks"])
        for h, claim in enumerate(block["heads"])
        if claim["step"] == step
    ]


def unit_claims(draft: Draft, step: str) -> list[tuple[int, dict[str, Any]]]:
    """All claims about units of a kind, as (block, claim)."""
    return [
        (b, claim)
        for b, block in enumerate(draft.claims["blocks"])
        for claim in block["units"]
        if claim["step"] == step
    ]
