"""A certificate for the page: the bounds as a tree, in words."""

from typing import Any

from everyformer.certify.bound import Bound
from everyformer.certify.certificate import Certificate
from everyformer.errors import printable
from everyformer.explore.embedding import finite_float


def certificate_data(certificate: Certificate) -> dict[str, Any]:
    """Verdict, bounds and what they rest on; a file's own certificate is marked as such."""
    return {
        "verdict": str(certificate.verdict),
        "unchecked": certificate.unchecked,
        "conditional": certificate.is_conditional,
        "headline": printable(str(certificate).partition("\n")[0]),
        "p": None if certificate.p is None else str(certificate.p),
        "eps": None if certificate.eps is None else finite_float(certificate.eps),
        "real": None if certificate.bound is None else _tree(certificate.bound),
        "float64": None
        if certificate.float64_bound is None
        else _tree(certificate.float64_bound),
        "obstacles": [printable(str(one)) for one in certificate.obstacles],
        "hypotheses": [printable(str(one)) for one in certificate.hypotheses],
        "measured": None
        if certificate.distance_sampled is None
        else finite_float(certificate.distance_sampled),
    }


def _tree(bound: Bound) -> dict[str, Any]:
    """value: as a float, None beyond float64; shown: rounded up."""
    return {
        "value": finite_float(bound.value),
        "shown": bound.format_value(),
        "reason": printable(bound.reason),
        "source": printable(bound.source),
        "rule": printable(bound.rule),
        "terms": [_tree(term) for term in bound.terms],
    }
