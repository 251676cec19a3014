"""The distance of f from its table, before any network is built."""

from fractions import Fraction

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.known import Declared
from everyformer.certify.on_cells.cells import Cells
from everyformer.construct.table_error import TableErrors, table_error
from everyformer.errors import CertificateError
from everyformer.targets.box import Box, Grid

UNIT = Box((0.0,), (1.0,))


def of(target: ef.Target, K: int, p: Fraction = Fraction(2), *, symmetric: bool = False):
    cells = Cells.of(Grid(K, target.seq_len, target.domain), symmetric=symmetric)
    assert target.expression is not None
    return table_error(cells, target.expression, p)


@pytest.mark.parametrize("K", [2, 3, 16])
def test_a_map_that_moves_entries_has_the_distance_of_rounding(K: int) -> None:
    """Each of N entries is uniform in a cell: E y^2 = 1 / (12 K^2)."""
    error = of(ef.targets.reverse(3, 1), K)
    bound = error.bound(ramps=Fraction(0), gives_up_repeated=False)
    exact = (3 / 12) ** 0.5 / K
    assert exact <= float(bound.value) <= exact * (1 + 1e-9)


def test_orbits_sum_to_the_same_as_all_cells() -> None:
    target = ef.targets.centring(3, 1)
    all_cells, orbits = of(target, 5), of(target, 5, symmetric=True)
    for name in ("distinct", "repeated"):
        whole, short = getattr(all_cells, name), getattr(orbits, name)
        assert float(whole) == pytest.approx(float(short), rel=1e-9)
        assert whole > 0


@pytest.mark.parametrize("method", ["selective-shift", "averaging"])
@pytest.mark.parametrize("name", ["sort", "prefix_mean"])
def test_what_is_certified_is_what_was_planned(name: str, method: str) -> None:
    target = ef.targets.GALLERY[name](2, 1)
    built = ef.construct(target, grid=8, method=method)  # pyright: ignore[reportArgumentType]
    certified = built.certificate.bound
    assert certified is not None
    planned = built.plan.planned_bound(TableErrors(target, Fraction(2)))
    assert planned is not None
    assert float(planned.value) == pytest.approx(float(certified.value), rel=2e-3)


def test_cells_that_are_given_up_cost_the_range() -> None:
    target = ef.targets.centring(2, 1)
    built = ef.construct(target, grid=8)
    planned = of(target, 8).bound(ramps=Fraction(0), gives_up_repeated=True)
    certified = built.certificate.bound
    assert certified is not None
    assert certified.value <= planned.value
    kept = of(target, 8).bound(ramps=Fraction(0), gives_up_repeated=False)
    assert kept.value < planned.value / 3


def test_a_declared_modulus_is_taken_at_its_word() -> None:
    grid = Grid(4, 2, UNIT)
    cells = Cells.of(grid, symmetric=False)
    values = np.zeros((cells.count, 2, 1))
    known = Declared(values, omega=Fraction(1, 8), lipschitz=None, radius=Fraction(1, 8))
    bound = table_error(cells, known, Fraction(2)).bound(
        ramps=Fraction(0), gives_up_repeated=False
    )
    assert float(bound.value) == pytest.approx(2**0.5 / 8, rel=1e-9)


def test_a_pole_has_no_bound() -> None:
    target = ef.Target(lambda x: 1 / (x - 0.5), 1, 1, name="pole")
    with pytest.raises(CertificateError, match="no finite bound"):
        of(target, 3)


def bumpy(x: np.ndarray) -> np.ndarray:
    return np.maximum(x - 0.375, 0) * 3 + x.mean(-2, keepdims=True) ** 2


@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("positional", [False, True])
def test_nothing_is_ruled_out_that_would_be_proved(
    p: int, declared: bool, positional: bool
) -> None:
    """Whatever the tolerance: if it is met, the table does not stand in its way."""
    target = ef.Target(bumpy, 2, 1, equivariant=True, lipschitz=5, trace=not declared)
    method = ef.SelectiveShifts(positional=positional)
    built = ef.construct(target, grid=8, p=p, method=method)
    proved = built.certificate.bound
    assert proved is not None
    errors = TableErrors(target, Fraction(p))
    assert built.plan.too_coarse(errors, proved.value) is None
    found = errors.beyond(8, proved.value / 2, gives_up_repeated=not positional)
    assert found is not None
    assert float(found) == pytest.approx(float(proved.value), rel=0.01)


def test_a_first_look_at_few_cells_tells_when_a_tolerance_is_far() -> None:
    target = ef.targets.reverse(3, 1)
    errors = TableErrors(target, Fraction(2))
    far = errors.beyond(2**10, Fraction(1, 10**7), gives_up_repeated=False)  # 2^30 cells
    assert far is not None
    assert float(far) == pytest.approx((3 / 12) ** 0.5 / 2**10, rel=0.05)
    assert errors.looked_at == {}
    limited = TableErrors(target, Fraction(2)).limited(100)
    assert limited.beyond(8, Fraction(1, 10**7), gives_up_repeated=False) is None


def test_all_cells_are_looked_at_once() -> None:
    """What a search measured is what a comparison would."""
    target = ef.targets.sort(3, 1)
    errors = TableErrors(target, Fraction(2))
    assert errors.beyond(32, Fraction(1), gives_up_repeated=False) is None
    assert errors.looked_at[32] == TableErrors(target, Fraction(2)).at(32)
