"""Tiny terms are folded on a screen, never in a file, and never to less than they are."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.bound import Bound
from everyformer.certify.certificate_file import read_certificate
from everyformer.certify.presentation import TINY, listing, power_of_ten_above
from everyformer.targets.gallery import centring

SIZES = st.fractions(min_value=0, max_value=1).map(lambda f: f**40)


def tree(*sizes: Fraction) -> Bound:
    parts = [Bound(size, f"term {k}: of size {k}") for k, size in enumerate(sizes)]
    return Bound.total(parts, "all")


@given(st.lists(SIZES, min_size=1, max_size=5), SIZES)
def test_what_is_folded_is_at_least_what_it_folds(
    sizes: list[Fraction], more: Fraction
) -> None:
    real = tree(Fraction(1, 7), *sizes)
    run = Bound.total([real, Bound(more, "float64: rounds")], "as float64 runs it")
    found = listing(real, run)
    assert all(term.value <= TINY * run.value for term in found.folded)
    kept = [bound for _, bound in found.shown]
    everything = [real, *real.terms, run, run.terms[-1]]
    assert sorted(map(id, kept + list(found.folded))) == sorted(map(id, everything))
    total = sum((term.value for term in found.folded), start=Fraction(0))
    if total:
        assert found.folded_line is not None
        assert Fraction(found.folded_line.split()[3].rstrip(":")) > total
    assert listing(real, run, verbose=True).folded == ()


def test_the_first_term_and_terms_of_terms_are_never_folded() -> None:
    nothing = tree(Fraction(0), Fraction(1), Fraction(0))
    assert [bound.value for bound in listing(nothing, None).folded] == [0]
    inner = Bound.total([Bound(Fraction(0), "leaf")], "inner")
    outer = Bound.total([Bound(Fraction(1), "main"), inner], "outer")
    assert listing(outer, None).folded == ()
    norm = Bound.p_norm([Bound(Fraction(1), "a"), Bound(Fraction(0), "b")], Fraction(2), "")
    assert listing(norm, None).folded == ()  # parts of the domain are not numerical


def test_no_term_but_zeros_is_told_as_zero() -> None:
    found = listing(tree(Fraction(1), Fraction(0), Fraction(0)), None)
    assert found.folded_line == "numerical effects = 0: term 1; term 2"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1), "1e+01"),
        (Fraction(999, 1000), "1e+00"),
        (Fraction(1, 10**11), "1e-10"),
        (Fraction(1, 10**11) - Fraction(1, 10**80), "1e-11"),
        (Fraction(1, 2**1100), "1e-331"),
    ],
)
def test_a_power_of_ten_is_the_next_one(value: Fraction, text: str) -> None:
    assert power_of_ten_above(value) == text


def test_a_certificate_folds_on_the_screen_alone(tmp_path: Path) -> None:
    built = ef.construct(centring(2), grid=4, method="partition")
    certificate = built.certificate
    assert "numerical effects < 1e-11: values; scores; leak; float64" in str(certificate)
    full = certificate.describe(verbose=True)
    assert "leak: data tokens in the softmax" in full
    assert "numerical effects" not in full
    built.save(tmp_path)
    assert read_certificate(tmp_path).bound == certificate.bound
    found = ef.verify(tmp_path)
    assert "numerical effects < 1e-11" in str(found)
    assert "leak: data tokens in the softmax" in found.describe(verbose=True)
