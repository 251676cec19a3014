"""B and C as arrays, as they act on attention."""

from dataclasses import replace

import torch

from everyformer.layers import (
    T5,
    RelativeAttention,
    Swin,
    T5Buckets,
    ToeplitzGain,
    WindowGain,
    learnt_positions,
)
from everyformer.layers.learnt_positions import toeplitz
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig


def test_the_arrays_are_the_matrices_of_the_layer() -> None:
    buckets = T5Buckets(8, 16)
    for index in (None, buckets):
        encoding, gain = T5(2, 17, buckets=index), ToeplitzGain(2, 17, buckets=index)
        torch.nn.init.normal_(gain.table)
        layer = RelativeAttention(8, 2, encoding=encoding, gain=gain)
        found = learnt_positions(layer)
        assert torch.equal(toeplitz(found["C"]), gain.matrix(17)[0])
        bias = encoding.offset_bias(torch.zeros(1, 2, 17, 4))
        assert bias is not None
        assert torch.equal(found["B"], bias.detach())


def test_windows_keep_both_directions() -> None:
    layer = RelativeAttention(8, 2, encoding=Swin(2, 3), gain=WindowGain(2, 3))
    assert isinstance(layer.gain, WindowGain)
    with torch.no_grad():
        layer.gain.table[1, (1 + 2) * 5 + (-2 + 2)] = 7.0
    found = learnt_positions(layer)
    assert found["B"].shape == found["C"].shape == (2, 5, 5)
    assert found["C"][1, 3, 0] == 7.0, "dx = 1, dy = -2"


def test_shared_tables_are_there_once_and_others_are_numbered() -> None:
    shared = EncoderConfig(5, 6, 8, layers=2, heads=2, ffn=8, encoding="t5+urpe")
    assert list(learnt_positions(Encoder(shared))) == ["B", "C"]
    apart = learnt_positions(Encoder(replace(shared, share_encoding=False)))
    assert list(apart) == ["B0", "B1", "C0", "C1"]
    for name in ("none", "ape", "alibi", "rotary", "shaw", "deberta", "xl"):
        assert learnt_positions(Encoder(replace(shared, encoding=name))) == {}
