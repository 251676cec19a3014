"""The gap of contexts: against all pairs, one by one; who collides, and who does not."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from everyformer.checks import contextual_gap as module
from everyformer.checks.contextual_gap import contextual_gap, with_skips
from everyformer.errors import InputError
from everyformer.layers import (
    AverageAttention,
    BilinearProjection,
    RelativeAttention,
    SeparableConvolution,
)


def drawn(layer: nn.Module, seed: int = 0) -> nn.Module:
    """In float64, with normal weights."""
    random = torch.Generator().manual_seed(seed)
    layer.double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random, dtype=weight.dtype))
    return layer


def words(n: int, d: int = 2, letters: int = 2, seed: int = 0) -> Tensor:
    """All sequences of length n over some tokens."""
    random = torch.Generator().manual_seed(seed)
    alphabet = torch.randn(letters, d, generator=random, dtype=torch.float64)
    numbers = torch.tensor(list(itertools.product(range(letters), repeat=n)))
    return alphabet[numbers]


SAME_MEAN = torch.tensor([[[1.0], [0.0], [2.0]], [[1.0], [-1.0], [3.0]]]).double()
"""Two sets that share a token and have the same mean: Section 6 of Yun et al. 2020."""


def plain_gap(outputs: Tensor, counted: Callable[[int, int], bool]) -> tuple[float, float]:
    """The definition, pair by pair: within and across."""
    count, n, _ = outputs.shape
    within = min(
        float((outputs[s, i] - outputs[s, j]).abs().max())
        for s in range(count)
        for i, j in itertools.combinations(range(n), 2)
    )
    across = min(
        float((outputs[s, i] - outputs[t, j]).abs().max())
        for s, t in itertools.permutations(range(count), 2)
        if counted(s, t)
        for i, j in itertools.product(range(n), repeat=2)
    )
    return within, across


@pytest.mark.parametrize("rows", [3, 512])
@pytest.mark.parametrize("pairs", ["all", "one token"])
def test_every_pair_is_compared(
    pairs: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    sequences = words(3)
    stack = with_skips([drawn(BilinearProjection(2, 3))])
    found = contextual_gap(stack, sequences, pairs=pairs)  # type: ignore[arg-type]
    outputs = stack(sequences).detach()

    def counted(s: int, t: int) -> bool:
        differing = int((sequences[s] != sequences[t]).any(-1).sum())
        return pairs == "all" or differing == 1

    within, across = plain_gap(outputs, counted)
    assert found.within is not None
    assert found.across is not None
    assert found.within.distance_sampled == within
    assert found.across.distance_sampled == across
    for pair in (found.within, found.across):
        (s, i), (t, j) = pair.first, pair.second
        assert float((outputs[s, i] - outputs[t, j]).abs().max()) == pair.distance_sampled
    assert found.separating
    assert found.gap_sampled == min(within, across)


def test_average_attention_collides_whatever_its_weights() -> None:
    """The negative control: a token and a mean do not say which set it is."""
    for seed in range(3):
        stack = with_skips([drawn(AverageAttention(1), seed), drawn(AverageAttention(1))])
        found = contextual_gap(stack, SAME_MEAN, equivariant=True)
        assert not found.separating
        assert found.across is not None
        assert {found.across.first, found.across.second} == {(0, 0), (1, 0)}
        assert "not separating 2 sequences: token 0 of sequence 0" in str(found)


def test_attention_tells_the_same_pair_apart() -> None:
    found = contextual_gap(
        with_skips([drawn(RelativeAttention(1, 1))]), SAME_MEAN, equivariant=True
    )
    assert found.separating
    assert found.gap_sampled > 1e-3
    assert "separating 2 sequences, gap" in str(found)


def test_a_random_projection_is_a_pairwise_contextual_mapping() -> None:
    """Section 6.1: a difference in one token becomes dense."""
    found = contextual_gap(
        with_skips([drawn(BilinearProjection(2, 4))]), words(4), pairs="one token"
    )
    assert found.across is not None
    assert found.across.distance_sampled > 1e-4


def test_short_filters_need_depth() -> None:
    """Section 6.2: one layer of filters of length 3 does not see the whole sequence."""
    mixers = [drawn(SeparableConvolution(2, 3), seed) for seed in range(3)]
    sequences = words(4)
    one, three = (contextual_gap(with_skips(mixers[:k]), sequences) for k in (1, 3))
    assert not one.separating
    assert three.separating


def test_equal_tokens_count_only_where_positions_do() -> None:
    equal = torch.tensor([[[1.0], [1.0], [0.0]]]).double()
    layer = with_skips([drawn(RelativeAttention(1, 1))])
    assert not contextual_gap(layer, equal).separating
    assert contextual_gap(layer, equal, equivariant=True).separating


@pytest.mark.parametrize(
    ("sequences", "options", "message"),
    [
        (SAME_MEAN[[0, 0]], {}, "Sequences 0 and 1 are the same"),
        (torch.stack([SAME_MEAN[0], SAME_MEAN[0].flip(0)]), {"equivariant": True}, "order"),
        (SAME_MEAN, {"pairs": "one token"}, "nothing to compare"),
        (SAME_MEAN[:1, :1], {}, "leave nothing to compare"),
        (SAME_MEAN[0], {}, r"give floating-point numbers, \(count, n, d\)"),
    ],
)
@pytest.mark.unhooked
def test_refusals(sequences: Tensor, options: dict[str, bool], message: str) -> None:
    with pytest.raises(InputError, match=message):
        contextual_gap(nn.Identity(), sequences, **options)  # type: ignore[arg-type]


@pytest.mark.unhooked
def test_outputs_that_have_no_distances() -> None:
    with pytest.raises(InputError, match="a vector for each token"):
        contextual_gap(lambda x: x.sum(-1), SAME_MEAN)
    with pytest.raises(InputError, match="infinite or NaN"):
        contextual_gap(lambda x: x / 0, SAME_MEAN)
