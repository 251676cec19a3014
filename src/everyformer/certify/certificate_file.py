"""Read the files of a certificate that nobody vouches for.

Every number is parsed as what it must be: exact ones from strings of rationals, counts from
integers. What is damaged, of another version, or beyond float64 is refused.
"""

import hashlib
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.certificate import (
    CERTIFICATE_FILE,
    FORMAT,
    LARGEST,
    SMALLEST,
    VALUES_FILE,
    VERSION,
    Certificate,
    Statement,
    metric_name,
)
from everyformer.certify.hypotheses import Hypothesis
from everyformer.certify.undecided import Obstacle
from everyformer.errors import CertificateError, ExpressionError, TargetError, printable
from everyformer.files.names import check_there
from everyformer.files.strict_json import read_json
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import parse_rational
from everyformer.targets.box import Box
from everyformer.targets.region import Region

MAX_SIZE = 2**20
MAX_STEPS = 64

COUNTS = frozenset(
    ["count", "representatives", "by_balls", "prefix_tokens", "margin", "blocks", "results"]
)
"""What a summary of cells counts."""


def read_certificate(folder: Path) -> Certificate:
    """Read a certificate that nobody vouches for.

    Raises:
        FileNotFoundError: If there is no certificate.
        CertificateError: If it is damaged, of another version, or its values are not those
            it names.
    """
    path = folder / CERTIFICATE_FILE
    check_there(path)
    try:
        values = read_json(path.read_bytes())
        if values["format"] != FORMAT or _count(values["version"]) != VERSION:
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
        msg = f"{path} is not a certificate that can be read: {_told(error)}. Construct"
        raise CertificateError(f"{msg} again.") from error


def _told(error: Exception) -> str:
    """What is wrong with a file, in words."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error})"
    if isinstance(error, KeyError):
        return f"the entry {error} is missing or unknown"
    return str(error) or repr(error)


def _count(value: Any) -> int:
    """An integer; `true`, which is 1 in Python, does not count as one.

    Raises:
        ValueError: If it is anything else.
    """
    if type(value) is not int:
        msg = f"{value!r:.40} is not an integer"
        raise ValueError(msg)
    return value


def _summary(values: dict[str, Any]) -> dict[str, Any]:
    """Counts, texts and one truth value of a proof, each where it belongs.

    Raises:
        ValueError: If one is of another type.
    """
    for key, value in values.items():
        if key in COUNTS:
            _count(value)
        elif isinstance(value, bool) != (key == "clipped"):
            msg = f"cells: {key} = {value!r:.40} is of another type"
            raise ValueError(msg)
    return values


def _measured(value: Any) -> float:
    """A distance that was measured, which files hold as text.

    Raises:
        ValueError: If it is not a number >= 0.
    """
    if not isinstance(value, str) or not float(value) >= 0:
        msg = f"distance_sampled = {value!r:.40} is not the text of a distance"
        raise ValueError(msg)
    return float(value)


def _from_json(values: dict[str, Any], folder: Path) -> Certificate:
    claim, weights = values["claim"], values["weights"]
    n, d, K = claim["n"], claim["d"], values["construction"]["grid"]
    eps = None if claim["eps"] is None else parse_rational(claim["eps"])
    if eps is not None and not (eps == 0 or SMALLEST <= eps <= LARGEST):
        msg = "the distance claimed is negative, or beyond the numbers of float64"
        raise ValueError(msg)
    sizes = (n, d, 2 if K is None else K)
    if not all(type(size) is int and 1 <= size <= MAX_SIZE for size in sizes) or K == 1:
        msg = f"n = {n!r}, d = {d!r}, grid = {K!r} are not sizes"
        raise ValueError(msg)
    domain = [(_float(low), _float(high)) for low, high in claim["domain"]]
    p = None if claim["p"] == "inf" else parse_rational(claim["p"])
    claims = tuple(claim["claims"])
    possible = p is None or (p >= 1 and p.numerator <= 64 * 64 and p.denominator <= 64)
    box = Box.per_coordinate(domain, d)
    region = _region(claim["region"], n, d, box) if "region" in claim else None
    everywhere = claim["metric"] == metric_name(p, True)
    possible = possible and not (everywhere and (p is None or region is not None))
    if (
        not possible
        or not set(claims) <= {"real", "float64"}
        or claim["metric"] != metric_name(p, everywhere)
    ):
        msg = f"the claim {claim} cannot be checked"
        raise ValueError(msg)
    bound, run = values["bound"], values["float64_bound"]
    sampled = values["distance_sampled"]
    return Certificate(
        eps=eps,
        p=p,
        claims=claims,
        seq_len=n,
        d_model=d,
        box=box,
        grid=K,
        weights_sha256=str(weights["sha256"]),
        dtype=str(weights["dtype"]),
        blocks=_count(weights["blocks"]),
        statement=_statement(values["target"], folder),
        bound=None if bound is None else Bound.from_json(bound),
        float64_bound=None if run is None else Bound.from_json(run),
        obstacles=tuple(Obstacle.from_json(one) for one in values["obstacles"]),
        hypotheses=tuple(Hypothesis.from_json(one) for one in values.get("hypotheses", [])),
        cells=_summary(dict(values["cells"])),
        distance_sampled=None if sampled is None else _measured(sampled),
        versions=dict(values["versions"]),
        unchecked=True,
        region=region,
        everywhere=everywhere,
    )


def _region(parts: list[Any], n: int, d: int, box: Box) -> Region:
    """A region that nobody vouches for."""
    ends = [
        [[(_float(low), _float(high)) for low, high in row] for row in part]
        for part in parts
    ]
    try:
        region = Region.of(ends, n, d)
        region.check_inside(box)
    except TargetError as error:
        raise ValueError(str(error)) from error
    return region


def _float(text: str) -> float:
    """A domain's end, which must be a float64 number."""
    exact = parse_rational(text)
    number = float(exact)
    if Fraction(number) != exact:
        msg = f"the end {text} of the domain is not a float64 number"
        raise ValueError(msg)
    return number


def _statement(values: dict[str, Any], folder: Path) -> Statement:
    name = printable(str(values["name"]))
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
        msg = f"{path} is not a .npy file ({error!r})"
        raise ValueError(msg) from error
    if array.dtype != np.float64 or array.ndim != 3 or not np.isfinite(array).all():
        msg = f"{path} does not hold finite float64 values"
        raise ValueError(msg)
    omega = parse_rational(values["omega"])
    if len(values["steps"]) > MAX_STEPS:
        msg = f"the modulus is declared at more than {MAX_STEPS} distances"
        raise ValueError(msg)
    steps = {int(k): parse_rational(v) for k, v in values["steps"].items()}
    sizes = [omega, *steps.values(), *steps]
    if lipschitz is not None:
        sizes.append(parse_rational(lipschitz))
    if not all(0 <= size <= 2**1000 for size in sizes) or max(steps, default=1) > MAX_SIZE:
        msg = "the declared modulus is negative, or beyond float64"
        raise ValueError(msg)
    return Statement(
        name,
        omega=omega,
        lipschitz=None if lipschitz is None else parse_rational(lipschitz),
        steps=steps,
        equivariant=bool(values["equivariant"]),
        values=array,
    )
