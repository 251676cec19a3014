"""Batches of one length: every example once an epoch, filling without weight."""

import numpy as np
import pytest
import torch

from everyformer.data.batch import FILLING
from everyformer.data.buckets import Buckets
from everyformer.data.nli import Pairs
from everyformer.data.packs.excerpt import excerpt
from everyformer.errors import InputError

CPU = torch.device("cpu")
SIZES = np.random.default_rng(0).integers(3, 129, 1003)
LENGTHS = (32, 64, 128)


@pytest.mark.parametrize("batch", [1, 8, 64, 2000])
def test_every_example_once_in_its_bucket(batch: int) -> None:
    buckets = Buckets(SIZES, LENGTHS, seed=3)
    for epoch in (None, 0, 1):
        plan = buckets.plan(epoch, batch)
        assert plan.numbers.shape == (buckets.batches(batch), batch)
        real = plan.numbers[plan.numbers != FILLING]
        assert sorted(real.tolist()) == list(range(len(SIZES)))
        filled = (plan.numbers == FILLING).sum(1)
        for length in LENGTHS:
            own = plan.lengths == length
            assert (filled[own] > 0).sum() <= 1, "one short batch for each bucket"
            numbers = plan.numbers[own]
            sizes = SIZES[numbers[numbers != FILLING]]
            assert (sizes <= length).all()
            assert (sizes > max([0, *(one for one in LENGTHS if one < length)])).all()


def test_a_plan_is_a_function_of_seed_and_epoch() -> None:
    first, same, other = (Buckets(SIZES, LENGTHS, seed) for seed in (3, 3, 4))
    assert np.array_equal(first.plan(7, 16).numbers, same.plan(7, 16).numbers)
    assert not np.array_equal(first.plan(7, 16).numbers, first.plan(8, 16).numbers)
    assert not np.array_equal(first.plan(7, 16).numbers, other.plan(7, 16).numbers)
    lengths = first.plan(0, 16).lengths
    assert (np.diff(lengths) < 0).any(), "batches are shuffled too"


def test_parts_together_read_what_one_reads() -> None:
    buckets = Buckets(SIZES, LENGTHS, seed=0)
    count = buckets.batches(16)
    steps = [0, 1, count - 1, count, 3 * count + 2, 0]
    for step in steps:
        whole = buckets.draw(step, 16, 0, 1, CPU)
        parts = [buckets.draw(step, 16, part, 4, CPU) for part in range(4)]
        assert {part.length for part in parts} == {whole.length}
        assert torch.equal(torch.cat([part.numbers for part in parts]), whole.numbers)
    read = [list(buckets.evaluation(16, part, 2, CPU)) for part in range(2)]
    assert len(read[0]) == len(read[1]) == count
    numbers = torch.cat([draw.numbers for own in read for draw in own])
    assert sorted(numbers[numbers >= 0].tolist()) == list(range(len(SIZES)))


def test_the_sum_of_losses_does_not_know_the_buckets() -> None:
    """A loss that reads only real tokens: bucketed, filled, and one by one."""
    task = Pairs(excerpt("nli"), 0, held_out=True, lengths=(32, 48, 64))
    table = torch.randn(
        excerpt("nli").vocabulary, generator=torch.Generator().manual_seed(0)
    )
    sums: list[torch.Tensor] = []
    for batch in (1, 7, 32):
        loss, weight = torch.zeros(2, dtype=torch.float64)
        for draw in task.evaluation("validation", batch, 0, 1, CPU):
            found = task.batch("validation", draw)
            assert found.padding is not None
            assert torch.equal(found.weights, (draw.numbers >= 0).float())
            own = (table[found.tokens] * ~found.padding).double().sum(1)
            loss += (own * found.weights).sum()
            weight += found.weights.sum()
        assert weight == 60
        sums.append(loss)
    assert torch.allclose(torch.stack(sums), sums[0].expand(3), rtol=1e-12)


def test_what_does_not_fit() -> None:
    for lengths in ((), (32, 64), (64, 32, 128), (32, 128, 128)):
        with pytest.raises(InputError, match="Give ascending lengths"):
            Buckets(SIZES, lengths, 0)
    with pytest.raises(InputError, match="batch of 8 examples has no part 3 of 3"):
        Buckets(SIZES, LENGTHS, 0).draw(0, 8, 3, 3, CPU)
    assert Buckets(np.empty(0, np.int64), LENGTHS, 0).batches(8) == 0
