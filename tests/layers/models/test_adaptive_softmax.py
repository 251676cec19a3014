"""Adaptive softmax: a probability, the one that PyTorch has, tied to the inputs."""

from typing import Any

import pytest
import torch
from torch import nn

from everyformer.errors import InputError
from everyformer.layers.models.adaptive_softmax import AdaptiveSoftmax

WORDS, DIM, CUTOFFS = 30, 8, (6, 14)


def made(div_value: int, cutoffs: tuple[int, ...] = CUTOFFS) -> AdaptiveSoftmax:
    torch.manual_seed(0)
    found = AdaptiveSoftmax(WORDS, DIM, cutoffs, div_value, dtype=torch.float64)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter += torch.randn_like(parameter)
    return found


@pytest.mark.parametrize("div_value", [1, 2])
def test_probabilities_sum_to_one_and_losses_are_theirs(div_value: int) -> None:
    words = made(div_value)
    states = torch.randn(3, 5, DIM, dtype=torch.float64)
    every = words.log_probabilities(states)
    torch.testing.assert_close(every.exp().sum(-1), torch.ones(3, 5, dtype=torch.float64))
    labels = torch.randint(0, WORDS, (3, 5))
    wanted = -every.gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(words.losses(states, labels), wanted)
    labels[0, 0] = -100
    assert words.losses(states, labels)[0, 0].item() == 0.0


def test_without_cutoffs_it_is_the_full_softmax() -> None:
    words: Any = made(1, ())
    states = torch.randn(7, DIM, dtype=torch.float64)
    labels = torch.randint(0, WORDS, (7,))
    logits = states @ words.table.T + words.word_bias
    wanted = nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(words.losses(states, labels), wanted)


@pytest.mark.parametrize("div_value", [1, 2])
def test_it_equals_torch_with_copied_weights(div_value: int) -> None:
    words: Any = made(div_value)
    torch_own: Any = nn.AdaptiveLogSoftmaxWithLoss(
        DIM, WORDS, list(CUTOFFS), div_value=div_value, head_bias=True, dtype=torch.float64
    )
    with torch.no_grad():
        words.word_bias[CUTOFFS[0] :] = 0.0  # torch's tails have no biases
        torch_own.head.weight.copy_(torch.cat([words._vectors(0), words.tail_weight]))
        torch_own.head.bias.copy_(torch.cat([words.word_bias[:6], words.tail_bias]))
        for group, tail in enumerate(torch_own.tail, start=1):
            narrow = words.maps[group - 1] if div_value > 1 else torch.eye(DIM)
            tail[0].weight.copy_(narrow)
            tail[1].weight.copy_(words._vectors(group))
    states = torch.randn(40, DIM, dtype=torch.float64)
    labels = torch.arange(40) % WORDS
    wanted = -torch_own(states, labels).output
    torch.testing.assert_close(words.losses(states, labels), wanted)
    torch.testing.assert_close(words.log_probabilities(states), torch_own.log_prob(states))


@pytest.mark.parametrize("div_value", [1, 2])
def test_gradients_of_tied_vectors_are_those_of_differences(div_value: int) -> None:
    words = made(div_value)
    text = torch.tensor([1, 8, 20, 29])

    def loss(*parameters: torch.Tensor) -> torch.Tensor:
        named = dict(zip(dict(words.named_parameters()), parameters, strict=True))
        called = torch.func.functional_call
        return called(_Tied(words), {f"words.{n}": p for n, p in named.items()}, (text,))

    assert torch.autograd.gradcheck(loss, tuple(words.parameters()))


class _Tied(nn.Module):
    def __init__(self, words: AdaptiveSoftmax) -> None:
        super().__init__()
        self.words = words

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Words enter and leave by the same vectors."""
        states = torch.tanh(self.words.embedded(text[:-1]))
        return self.words.losses(states, text[1:]).sum()


def test_cutoffs_that_cut_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(14, 6\) do not cut 30 words"):
        AdaptiveSoftmax(WORDS, DIM, (14, 6))
    with pytest.raises(InputError, match="above 0 and below 30"):
        AdaptiveSoftmax(WORDS, DIM, (30,))
    with pytest.raises(InputError, match="leaves the last of 3 groups"):
        AdaptiveSoftmax(WORDS, DIM, CUTOFFS, 4)
