"""Gaps of random mixers, with averaging as the control that collides."""

import torch

from everyformer.experiments.contextual_gap.cells import SCALES, Scale, measured, multisets

SMALL = SCALES["small"]


def test_attention_separates_and_averaging_alone_does_not() -> None:
    for depth in (1, 4):
        assert measured(SMALL, "attention", "alone", depth, 0).value_sampled > 1e-6
        found = measured(SMALL, "average", "alone", depth, 0)
        assert found.value_sampled == 0.0
        assert "not separating" in found.more["witness"]


def test_averages_of_nonlinear_functions_separate() -> None:
    assert measured(SMALL, "average", "with feed-forward", 1, 0).value_sampled == 0.0
    assert measured(SMALL, "average", "with feed-forward", 2, 0).value_sampled > 1e-6


def test_a_short_filter_needs_depth() -> None:
    gaps = [
        measured(SMALL, "separable", "alone", depth, 0).value_sampled for depth in (1, 3)
    ]
    assert gaps[0] == 0.0 < gaps[1]


def test_bi_linear_pairs() -> None:
    assert measured(SMALL, "bi-linear", "alone", 1, 0).value_sampled > 1e-6


def test_the_set_holds_every_multiset_once() -> None:
    scale = Scale(3, 4, 2, (1,))
    generator = torch.Generator().manual_seed(0)
    assert multisets(scale, generator, ordered=False).shape == (20, 3, 2)
    assert multisets(scale, generator, ordered=True).shape == (64, 3, 2)
