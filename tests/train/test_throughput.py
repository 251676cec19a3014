"""Operations are counted as PyTorch counts them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from everyformer.errors import TrainingError
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.throughput import forward_flops, matrix_rate, training_flops


@pytest.mark.parametrize("encoding", ["ape", "t5+urpe"])
def test_the_count_is_that_of_pytorch(encoding: str) -> None:
    model = Encoder(EncoderConfig(30, 10, 8, 2, 2, 24, encoding=encoding, segments=2))
    for part in model.modules():
        if isinstance(part, RelativeAttention):
            part.implementation = "reference"
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.zeros(3, 10, dtype=torch.long))
    assert counter.get_total_flops() == 3 * forward_flops(model, 10)
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.zeros(1, 10, dtype=torch.long))
        logits.sum().backward()
    assert counter.get_total_flops() == training_flops(model, 10)


@pytest.mark.parametrize("mixer", ["average", "bilinear", "separable", "light", "dynamic"])
def test_mixers_are_counted_as_pytorch_does(mixer: str) -> None:
    """Without numbers convolutions are those of PyTorch; it counts no sums over taps."""
    config = EncoderConfig(30, 10, 16, 2, 2, 24, mixers=mixer, filters=2, filter_length=5)
    model = Encoder(config, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 10, dtype=torch.long, device="meta"))
    taps = 2 * (2 * 10 * 16 * 5) if mixer == "dynamic" else 0
    assert counter.get_total_flops() == forward_flops(model, 10) - taps


def test_a_head_on_few_tokens_costs_less() -> None:
    model = Encoder(EncoderConfig(30, 10, dim=8, layers=1, heads=2, ffn=24))
    saved = forward_flops(model, 10) - forward_flops(model, 10, head_tokens=4)
    assert saved == 2 * 6 * (8 * 8 + 8 * 30)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(TrainingError, match="Conv1d"):
        forward_flops(nn.Conv1d(3, 3, 3), 10)


def test_a_rate_is_measured() -> None:
    rate = matrix_rate(torch.device("cpu"), torch.float32, size=128, repeats=3)
    assert 1e6 < rate < 1e15
