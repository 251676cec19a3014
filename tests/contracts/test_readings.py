"""The contract of a reading: three forms by cells, and that of programs."""

from typing import Any

import pytest
from tests.contracts.reading import ReadingContract

import everyformer as ef
from everyformer.certify.averaging import form as averaging
from everyformer.certify.forms import FORMS
from everyformer.certify.partition import form as partition
from everyformer.certify.proof import Proof
from everyformer.certify.shifts import form as shifts
from everyformer.certify.weights import Weights
from everyformer.targets import reverse, soft_attention


class TestShifts(ReadingContract):
    read, supremum, steered = shifts.read, False, True
    method, target, size = ef.SelectiveShifts(), reverse(2, 1), 4


class TestAveraging(ReadingContract):
    read, supremum, steered = averaging.read, False, False
    method, target, size = ef.Averaging(), reverse(2, 1), 4


class TestPartition(ReadingContract):
    read, supremum, steered = partition.read, True, False
    method, target, size = ef.Partition(), soft_attention(2, 1), 4


class TestCompiled(ReadingContract):
    read, supremum, steered = None, True, True
    method, target, size = ef.Compile(), soft_attention(2, 1), 1e-6


def test_every_form_has_its_contract() -> None:
    contracts = ReadingContract.__subclasses__()
    assert [one.read for one in contracts if one.read is not None] == [*reversed(FORMS)]


def test_a_reading_that_does_not_look_is_caught() -> None:
    """Negative control: it says of all weights what is true of the first."""

    class Blind(TestAveraging):
        def proof(self, weights: Weights, *more: Any, **named: Any) -> Proof:
            return super().proof(self.weights(), *more, **named)

    with pytest.raises(AssertionError, match=r"registers\.W_in"):
        Blind().test_tampered_weights_lose_the_old_bound()
