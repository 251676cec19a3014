"""A certificate: what is claimed of which weights and which function, and the bound.

On disk it is `certificate.json`, and `target_values.npy` beside it where f is known by a
declaration. All exact numbers are strings of rationals.
"""

import hashlib
import io
import json
import os
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.hypotheses import Claim, Hypothesis, conditions, headline
from everyformer.certify.presentation import listing
from everyformer.certify.undecided import Obstacle
from everyformer.errors import printable
from everyformer.files.names import CERTIFICATE_FILE, VALUES_FILE
from everyformer.notebook import html_lines, short
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import format_up
from everyformer.provenance import versions
from everyformer.targets.box import Box
from everyformer.targets.region import Region
from everyformer.verdict import Verdict

FORMAT = "everyformer-certificate"
VERSION = 1

SMALLEST, LARGEST = Fraction(1, 2**1074), Fraction(2**1000)
"""No distance that is claimed is smaller, but 0, or larger."""

LONG = 100_000
"""Lines of f from which on a certificate is written without line breaks."""


@dataclass(frozen=True)
class Statement:
    """What is stated of f.

    Attributes:
        name: f's name.
        expression: f itself, if it could be traced.
        omega: Bound on |f - f(centre)| on a cell, if a modulus is declared.
        lipschitz: The constant, if that is what was declared.
        steps: omega at 1, 2, 4, ... cells.
        equivariant: Whether f is declared equivariant; not used with an expression.
        values: f at the centres of all representatives, as computed; with a modulus.
    """

    name: str
    expression: Expression | None = None
    omega: Fraction | None = None
    lipschitz: Fraction | None = None
    steps: dict[int, Fraction] = field(default_factory=dict)
    equivariant: bool = False
    values: np.ndarray | None = None

    @property
    def kind(self) -> Literal["expression", "modulus", "nothing"]:
        """How f is known."""
        if self.expression is not None:
            return "expression"
        return "nothing" if self.omega is None else "modulus"

    @property
    def declaration(self) -> str:
        """The declared modulus, in words."""
        if self.lipschitz is not None:
            exact, near = str(self.lipschitz), f"{float(self.lipschitz):.6g}"
            constant = exact if len(exact) <= len(near) else near
            return f"max|f(X) - f(Y)| <= {constant} max|X - Y|"
        return "a modulus of continuity, at the listed distances"

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the values are a file of their own, named by its hash."""
        stated: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.expression is not None:
            program = self.expression.to_json()
            return stated | {"expression": program, "sha256": self.expression.sha256}
        if self.omega is None:
            return stated
        assert self.values is not None, "a declaration has values"  # noqa: S101
        return stated | {
            "declaration": self.declaration,
            "omega": str(self.omega),
            "lipschitz": None if self.lipschitz is None else str(self.lipschitz),
            "steps": {str(k): str(omega) for k, omega in self.steps.items()},
            "equivariant": self.equivariant,
            "values": {
                "file": VALUES_FILE,
                "sha256": hashlib.sha256(values_bytes(self.values)).hexdigest(),
            },
        }


@dataclass(frozen=True)
class Certificate:
    """A claim about given weights and a given function, and the bounds that prove it.

    Attributes:
        eps: The claim is d_p(f, g) <= eps; None if nothing is claimed.
        p: The exponent; None for the supremum.
        claims: For which networks: in real arithmetic, as float64 runs it.
        seq_len: n.
        d_model: d.
        box: The domain of a token.
        grid: K; None for a network that is proved on the whole box at once.
        weights_sha256: Hash of the file of weights.
        dtype: "float64" or "rational".
        blocks: The depth.
        statement: What is stated of f.
        bound: A bound on d_p(f, g) in real arithmetic, or None.
        float64_bound: A bound on d_p(f, g) of float64 runs, or None.
        obstacles: What stopped a bound.
        hypotheses: What the bounds rest on.
        cells: Counts and extremes.
        distance_sampled: d_p(f, g), measured at random points; never a bound.
        versions: What made it.
        unchecked: Read from a file: all of it is what the file says, and nothing is proved
            before `verify` has proved it again.
        region: Over which the distance is; None for the box.
        everywhere: Whether it is over all of R^(n x d), f being 0 outside the box.
    """

    eps: Fraction | None
    p: Fraction | None
    claims: tuple[Claim, ...]
    seq_len: int
    d_model: int
    box: Box
    grid: int | None
    weights_sha256: str
    dtype: str
    blocks: int
    statement: Statement
    bound: Bound | None
    float64_bound: Bound | None
    obstacles: tuple[Obstacle, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    cells: dict[str, Any] = field(default_factory=dict)
    distance_sampled: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    unchecked: bool = False
    region: Region | None = None
    everywhere: bool = False

    @property
    def verdict(self) -> Verdict:
        """PROVED if the bounds of all claims meet eps; else UNKNOWN.

        Of an unchecked certificate this is the verdict that the file gives itself.
        """
        bounds = {"real": self.bound, "float64": self.float64_bound}
        if self.eps is None or not self.claims:
            return Verdict.UNKNOWN
        for claim in self.claims:
            bound = bounds[claim]
            if bound is None or bound > self.eps:
                return Verdict.UNKNOWN
        return Verdict.PROVED

    def distance(self, name: str) -> str:
        """The distance that is bounded, in words, for a name of f."""
        over = "" if self.region is None else f" over {self.region}"
        if self.everywhere:
            over = f" over all of R^({self.seq_len} x {self.d_model})"
        return (f"sup|{name} - g|" if self.p is None else f"d_{self.p}({name}, g)") + over

    @property
    def on_box(self) -> bool:
        """Whether the distance is over the box, and over nothing else."""
        return self.region is None and not self.everywhere

    def claim(self, name: str) -> str:
        """What is claimed, in words, for a name of f."""
        if self.eps is None:
            return f"nothing is claimed of {self.distance(name)}"
        networks = " and ".join(
            {"real": "in real arithmetic", "float64": "as float64 runs it"}[claim]
            for claim in self.claims
        )
        return f"{self.distance(name)} <= {format_decimal(self.eps)}, g {networks}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the bounds take for granted, in words."""
        return tuple(str(hypothesis) for hypothesis in self.hypotheses)

    def describe(self, *, verbose: bool = False) -> str:
        """The claim, the trees of bounds, and what they take for granted.

        Args:
            verbose: Show all terms; otherwise tiny ones are folded into one line.
        """
        bounds = listing(self.bound, self.float64_bound, verbose=verbose)
        lines = [self._marked(self.headline)]
        lines += [self._marked(line) for line in [*bounds.lines(), *self._remarks()]]
        return "\n".join(lines)

    def __str__(self) -> str:
        """The claim, the bounds with tiny terms folded, and what they take for granted."""
        return self.describe()

    @property
    def headline(self) -> str:
        """The verdict and the claim, with all that was declared of f."""
        claim = self.claim(self.statement.name)
        return headline(self.verdict.name, claim, self.hypotheses)

    def _remarks(self) -> list[str]:
        """What is not proved, what was measured, and what is assumed."""
        lines = [f"not proved: {obstacle}" for obstacle in self.obstacles]
        if self.distance_sampled is not None:
            name = self.distance(self.statement.name).partition("(")[0]
            lines.append(f"measured, not proved: {name} about {self.distance_sampled:.3e}")
        return lines + [f"assumes: {assumption}" for assumption in self.assumptions]

    def _marked(self, line: str) -> str:
        """A line, marked as a file's own words if that is what it is."""
        return f"the file says, unchecked: {printable(line)}" if self.unchecked else line

    def __repr__(self) -> str:
        """One line; `print` shows the bounds."""
        return f"Certificate({short(self._marked(self.headline), 160)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.html()

    def html(self) -> str:
        """The bounds as a table."""
        bounds = listing(self.bound, self.float64_bound)
        table = bounds.html(self._marked(self.headline))
        return table + html_lines(self._marked(line) for line in self._remarks())

    @property
    def is_conditional(self) -> bool:
        """Whether the claim rests on a declaration."""
        return bool(conditions(self.hypotheses))

    def claim_json(self, *, conditional: bool) -> dict[str, Any]:
        """The claim as a JSON object."""
        kind = " and ".join(self.claims)
        return {
            "kind": f"{kind}, conditional" if conditional else kind,
            "claims": list(self.claims),
            "metric": metric_name(self.p, self.everywhere),
            "p": "inf" if self.p is None else str(self.p),
            "eps": None if self.eps is None else str(self.eps),
            "n": self.seq_len,
            "d": self.d_model,
            "domain": [
                [str(Fraction(low)), str(Fraction(high))]
                for low, high in zip(self.box.lows, self.box.highs, strict=True)
            ],
            **({} if self.region is None else {"region": self.region.to_json()}),
        }

    def to_json(self) -> dict[str, Any]:
        """The content of certificate.json."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "verdict": self.verdict.name,
            "claim": self.claim_json(conditional=self.is_conditional),
            "weights": {
                "sha256": self.weights_sha256,
                "dtype": self.dtype,
                "blocks": self.blocks,
            },
            "target": self.statement.to_json(),
            "construction": {"grid": self.grid},
            "cells": self.cells,
            "bound": None if self.bound is None else self.bound.to_json(),
            "float64_bound": None
            if self.float64_bound is None
            else self.float64_bound.to_json(),
            "obstacles": [obstacle.to_json() for obstacle in self.obstacles],
            "distance_sampled": None
            if self.distance_sampled is None
            else repr(self.distance_sampled),
            "hypotheses": [hypothesis.to_json() for hypothesis in self.hypotheses],
            "versions": self.versions,
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write certificate.json, and the values of f where they are part of it."""
        place = Path(folder)
        if self.statement.values is not None:
            (place / VALUES_FILE).write_bytes(values_bytes(self.statement.values))
        f = self.statement.expression
        is_long = f is not None and len(f.nodes) > LONG
        text = json.dumps(self.to_json(), indent=None if is_long else 1)
        (place / CERTIFICATE_FILE).write_text(text + "\n")


def metric_name(p: Fraction | None, everywhere: bool) -> str:
    """A distance by name; a reader that does not know one refuses it."""
    if everywhere:
        return "d_p, f = 0 outside the domain"
    return "sup" if p is None else "d_p"


def format_decimal(value: Fraction) -> str:
    """A number >= 0 as a decimal: exactly where that is short, else rounded up.

    Example:
        >>> format_decimal(Fraction(1, 10)), format_decimal(Fraction(1, 3))
        ('0.1', '3.33334e-01')
    """
    if value < 2**1000:
        near = f"{float(value):.12g}"
        if Fraction(near) == value:
            return near
    return format_up(value, 6)


def values_bytes(values: np.ndarray) -> bytes:
    """An array as the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(values), allow_pickle=False)
    return buffer.getvalue()


def current_versions() -> dict[str, str]:
    """Versions of everything that a certificate rests on."""
    packages = ("everyformer", "numpy", "python-flint")
    return dict.fromkeys(packages, "not installed") | versions(*packages)
