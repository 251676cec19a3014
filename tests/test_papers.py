"""Every citation names a result that exists, and every lemma of the paper has its code."""

import importlib
import pkgutil

import pytest

import everyformer
from everyformer.papers import LUO2022, YUN2020, YUN2020B, Citation, implements
from everyformer.verdict import Verdict


def all_citations() -> dict[Citation, set[str]]:
    found: dict[Citation, set[str]] = {}
    for info in pkgutil.walk_packages(everyformer.__path__, "everyformer."):
        module = importlib.import_module(info.name)
        things = list(vars(module).values())
        for thing in list(things):
            if isinstance(thing, type):
                things += [getattr(m, "fget", None) or m for m in vars(thing).values()]
        for thing in things:
            marks: tuple[Citation, ...] = getattr(thing, "__implements__", ())
            for citation in marks:
                found.setdefault(citation, set()).add(thing.__name__)
    return found


@pytest.mark.parametrize(
    "result",
    [
        *(f"Lemma {k}" for k in (5, 6, 7, 8, 9, 10)),
        "Theorem 2",
        "Theorem 3",
        "Definition 5.1",
        "Equation 1",
        "Equation 2",
        "Section 5.4",
    ],
)
def test_every_result_of_the_proof_has_code(result: str) -> None:
    assert all_citations()[Citation(YUN2020, result)]


@pytest.mark.parametrize("result", ["Theorem 3", "Proposition 4"])
def test_urpe_has_code(result: str) -> None:
    assert "position_layer" in all_citations()[Citation(LUO2022, result)]


def test_sparse_attention_has_code() -> None:
    found = all_citations()
    assert {"chain_shifts", "max_shifts"} <= found[Citation(YUN2020B, "Theorem 1")]
    assert "assumption_1" in found[Citation(YUN2020B, "Assumption 1")]


def test_a_result_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="has no Lemma 99"):
        implements(YUN2020, "Lemma 99")


def test_a_verdict_is_no_bool() -> None:
    with pytest.raises(TypeError, match="not a bool"):
        bool(Verdict.UNKNOWN)
