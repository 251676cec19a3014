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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.errors import CertificateError, ExpressionError
from everyformer.files.strict_json import read_json
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import format_up, parse_rational
from everyformer.targets.box import Box
from everyformer.verdict import Verdict

FORMAT = "everyformer-certificate"
VERSION = 1
MAX_SIZE = 2**20
MAX_STEPS = 64
SMALLEST, LARGEST = Fraction(1, 2**1074), Fraction(2**1000)
CERTIFICATE_FILE = "certificate.json"
VALUES_FILE = "target_values.npy"
HYPOTHESES = (
    "float64 runs: IEEE, round to nearest, no fast-math, no flush to zero that matters; "
    "softmax subtracts the maximum, exp(0) = 1, exp(t) = 0 for t < -760; no overflow on "
    "the ramps"
)
"""What a bound on float64 runs takes for granted."""

EXP_HYPOTHESIS = "float64 runs: exp within 4 ulp"
"""And of networks with prefix tokens, whose softmax is no maximum."""

Claim = Literal["real", "float64"]


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
        grid: K.
        weights_sha256: Hash of the file of weights.
        dtype: "float64" or "rational".
        blocks: The depth.
        statement: What is stated of f.
        bound: A bound on d_p(f, g) in real arithmetic, or None.
        float64_bound: A bound on d_p(f, g) of float64 runs, or None.
        obstacles: What stopped a bound.
        cells: Counts and extremes.
        distance_sampled: d_p(f, g), measured at random points; never a bound.
        versions: What made it.
    """

    eps: Fraction | None
    p: Fraction | None
    claims: tuple[Claim, ...]
    seq_len: int
    d_model: int
    box: Box
    grid: int
    weights_sha256: str
    dtype: str
    blocks: int
    statement: Statement
    bound: Bound | None
    float64_bound: Bound | None
    obstacles: tuple[str, ...] = ()
    cells: dict[str, Any] = field(default_factory=dict)
    distance_sampled: float | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """PROVED if the bounds of all claims meet eps; else UNKNOWN."""
        bounds = {"real": self.bound, "float64": self.float64_bound}
        if self.eps is None or not self.claims:
            return Verdict.UNKNOWN
        for claim in self.claims:
            bound = bounds[claim]
            if bound is None or bound > self.eps:
                return Verdict.UNKNOWN
        return Verdict.PROVED

    @property
    def distance(self) -> str:
        """The distance that is bounded, in words."""
        name = self.statement.name
        return f"sup|{name} - g|" if self.p is None else f"d_{self.p}({name}, g)"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the bounds take for granted."""
        listed: list[str] = []
        if self.statement.kind == "modulus":
            listed.append(f"declared, not proved: {self.statement.declaration}")
            listed.append("f at the centres of the cells is what float64 computed for it")
            if self.statement.equivariant:
                listed.append("declared, not proved: f is permutation equivariant")
        if "float64" in self.claims:
            listed.append(HYPOTHESES)
            if "prefix_tokens" in self.cells:
                listed.append(EXP_HYPOTHESIS)
        return tuple(listed)

    def __str__(self) -> str:
        """The claim, the trees of bounds, and what they take for granted."""
        conditional = ", if what is declared is true" if self.is_conditional else ""
        networks = " and ".join(
            {"real": "in real arithmetic", "float64": "as float64 runs it"}[claim]
            for claim in self.claims
        )
        if self.eps is None:
            claim = f"nothing is claimed of {self.distance}"
        else:
            eps = format_decimal(self.eps)
            claim = f"{self.distance} <= {eps}, g {networks}{conditional}"
        lines = [f"{self.verdict.name}: {claim}"]
        if self.bound is not None:
            lines.append(str(self.bound))
        if self.float64_bound is not None:
            # Its parts are those of the first tree, but for the last line.
            head, *_, last = str(self.float64_bound).splitlines()
            lines += [head, last]
        lines += [f"not proved: {obstacle}" for obstacle in self.obstacles]
        if self.distance_sampled is not None:
            short = self.distance.partition("(")[0]
            lines.append(f"measured, not proved: {short} about {self.distance_sampled:.3e}")
        lines += [f"assumes: {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)

    @property
    def is_conditional(self) -> bool:
        """Whether the claim rests on a declaration."""
        return self.statement.kind == "modulus"

    def to_json(self) -> dict[str, Any]:
        """The content of certificate.json."""
        kind = " and ".join(self.claims)
        return {
            "format": FORMAT,
            "version": VERSION,
            "verdict": self.verdict.name,
            "claim": {
                "kind": f"{kind}, conditional" if self.is_conditional else kind,
                "claims": list(self.claims),
                "metric": "d_p" if self.p is not None else "sup",
                "p": "inf" if self.p is None else str(self.p),
                "eps": None if self.eps is None else str(self.eps),
                "n": self.seq_len,
                "d": self.d_model,
                "domain": [
                    [str(Fraction(low)), str(Fraction(high))]
                    for low, high in zip(self.box.lows, self.box.highs, strict=True)
                ],
            },
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
            "obstacles": list(self.obstacles),
            "distance_sampled": None
            if self.distance_sampled is None
            else repr(self.distance_sampled),
            "assumptions": list(self.assumptions),
            "versions": self.versions,
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write certificate.json, and the values of f where they are part of it."""
        place = Path(folder)
        if self.statement.values is not None:
            (place / VALUES_FILE).write_bytes(values_bytes(self.statement.values))
        text = json.dumps(self.to_json(), indent=1)
        (place / CERTIFICATE_FILE).write_text(text + "\n")


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


def read_certificate(folder: Path) -> Certificate:
    """Read a certificate that nobody vouches for.

    Raises:
        FileNotFoundError: If there is none.
        CertificateError: If it is damaged, of another version, or its values are not those
            it names.
    """
    path = folder / CERTIFICATE_FILE
    if not path.is_file():
        msg = f"There is no file {path}. Give a folder that `everyformer construct` wrote."
        raise FileNotFoundError(msg)
    try:
        values = read_json(path.read_bytes())
        if values["format"] != FORMAT or values["version"] != VERSION:
            msg = f"its format is {values['format']!r}, version {values['version']!r}"
            raise ValueError(msg)
        return _from_json(values, folder)
    except (CertificateError, FileNotFoundError):
        raise
    except (
        AttributeError,
        ExpressionError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ) as error:
        msg = f"{path} is no certificate that can be read: {error!r}. Construct again."
        raise CertificateError(msg) from error


def _from_json(values: dict[str, Any], folder: Path) -> Certificate:
    claim, weights = values["claim"], values["weights"]
    n, d, K = claim["n"], claim["d"], values["construction"]["grid"]
    eps = None if claim["eps"] is None else parse_rational(claim["eps"])
    if eps is not None and not (eps == 0 or SMALLEST <= eps <= LARGEST):
        msg = "the distance claimed is negative, or beyond the numbers of float64"
        raise ValueError(msg)
    if not all(type(size) is int and 1 <= size <= MAX_SIZE for size in (n, d, K)) or K < 2:
        msg = f"n = {n!r}, d = {d!r}, grid = {K!r} are not sizes"
        raise ValueError(msg)
    domain = [(_float(low), _float(high)) for low, high in claim["domain"]]
    p = None if claim["p"] == "inf" else parse_rational(claim["p"])
    claims = tuple(claim["claims"])
    possible = p is None or (p >= 1 and p.numerator <= 64 * 64 and p.denominator <= 64)
    if (
        not possible
        or not set(claims) <= {"real", "float64"}
        or claim["metric"] != ("sup" if p is None else "d_p")
    ):
        msg = f"the claim {claim} is none that can be checked"
        raise ValueError(msg)
    bound, run = values["bound"], values["float64_bound"]
    sampled = values["distance_sampled"]
    return Certificate(
        eps=eps,
        p=p,
        claims=claims,
        seq_len=n,
        d_model=d,
        box=Box.per_coordinate(domain, d),
        grid=K,
        weights_sha256=str(weights["sha256"]),
        dtype=str(weights["dtype"]),
        blocks=int(weights["blocks"]),
        statement=_statement(values["target"], folder),
        bound=None if bound is None else Bound.from_json(bound),
        float64_bound=None if run is None else Bound.from_json(run),
        obstacles=tuple(str(text) for text in values["obstacles"]),
        cells=dict(values["cells"]),
        distance_sampled=None if sampled is None else float(sampled),
        versions=dict(values["versions"]),
    )


def _float(text: str) -> float:
    """A domain's end, which must be a float64 number."""
    exact = parse_rational(text)
    number = float(exact)
    if Fraction(number) != exact:
        msg = f"the end {text} of the domain is no float64 number"
        raise ValueError(msg)
    return number


def _statement(values: dict[str, Any], folder: Path) -> Statement:
    name = "".join(c if c.isprintable() else "?" for c in str(values["name"]))
    kind = values["kind"]
    if kind == "nothing":
        return Statement(name)
    if kind == "expression":
        expression = Expression.from_json(values["expression"])
        if expression.sha256 != values["sha256"]:
            msg = (
                f"The expression in {folder / CERTIFICATE_FILE} is not the one that its "
                "hash names. The file was changed; construct again."
            )
            raise CertificateError(msg)
        return Statement(name, expression=expression)
    if kind != "modulus":
        msg = f"f is known by {kind!r}"
        raise ValueError(msg)
    path = folder / VALUES_FILE
    if not path.is_file():
        msg = f"There is no file {path}, which the certificate needs. Construct again."
        raise FileNotFoundError(msg)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != values["values"]["sha256"]:
        msg = f"{path} is not the file that the certificate names. Construct again."
        raise CertificateError(msg)
    lipschitz = values["lipschitz"]
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python: many things can happen
        msg = f"{path} is no .npy file ({error!r})"
        raise ValueError(msg) from error
    if array.dtype != np.float64 or array.ndim != 3 or not np.isfinite(array).all():
        msg = f"{path} does not hold finite float64 values"
        raise ValueError(msg)
    omega = parse_rational(values["omega"])
    steps = {int(k): parse_rational(v) for k, v in values["steps"].items()}
    sizes = [omega, *steps.values(), *steps]
    if lipschitz is not None:
        sizes.append(parse_rational(lipschitz))
    if (
        not all(0 <= size <= 2**1000 for size in sizes)
        or max(steps, default=1) > MAX_SIZE
        or len(steps) > MAX_STEPS
    ):
        msg = f"the declared modulus is negative, beyond float64, or has {len(steps)} steps"
        raise ValueError(msg)
    return Statement(
        name,
        omega=omega,
        lipschitz=None if lipschitz is None else parse_rational(lipschitz),
        steps=steps,
        equivariant=bool(values["equivariant"]),
        values=array,
    )


def current_versions() -> dict[str, str]:
    """Versions of everything that a certificate rests on."""
    found: dict[str, str] = {}
    for package in ("everyformer", "numpy", "python-flint"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
