"""A stack with memory: what it remembers, what it sees, and what it costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers.encodings import TransformerXL as Sinusoidal
from everyformer.layers.gains import ToeplitzGain
from everyformer.layers.learnt_positions import learnt_positions
from everyformer.layers.models.segment_attention import by_distance
from everyformer.layers.models.transformer_xl import (
    Remembered,
    TransformerXLConfig,
    TransformerXLModel,
    View,
)
from everyformer.layers.past import Past

SMALL = TransformerXLConfig(
    vocab_size=30, max_len=48, dim=16, layers=3, heads=2, head_dim=8, ffn=32, dropout=0.0
)
FREE = View()
ENCODINGS = ("none", "t5", "alibi", "rotary", "shaw-values", "deberta", "xl")


def made(config: TransformerXLConfig) -> TransformerXLModel:
    """A model in float64 whose tables are not what they start as."""
    torch.manual_seed(0)
    model = TransformerXLModel(config, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randint(0, 30, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def read(
    model: TransformerXLModel, text: Tensor, n: int, places: int, view: View = FREE
) -> Tensor:
    """The states of a text that is read in segments of n tokens."""
    memory = model.no_memory(len(text), places)
    found: list[Tensor] = []
    for segment in text.split(n, 1):
        states, memory = model.states(segment, memory, view)
        found.append(states)
    return torch.cat(found, 1)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_segments_with_enough_memory_are_one_causal_pass(encoding: str) -> None:
    model = made(replace(SMALL, encoding=encoding, gain="shared"))
    text = tokens(24)
    whole = read(model, text, 24, 0)
    cut = read(model, text, 6, 18)
    assert float((whole - cut).abs().max()) < 1e-14 * max(1.0, float(whole.abs().max()))
    later = text.clone()
    later[:, 13:] = 0
    torch.testing.assert_close(read(model, later, 6, 18)[:, :13], cut[:, :13])


def test_a_short_memory_differs_from_the_first_segment_whose_context_is_cut() -> None:
    model = made(replace(SMALL, gain="layer"))
    text = tokens(24)
    whole = read(model, text, 24, 0)
    for places, first in ((12, 18), (6, 12)):
        apart = (read(model, text, 6, places) - whole).abs().amax((0, 2))
        assert float(apart[:first].max()) < 1e-13
        assert float(apart[first:].min()) > 1e-3


def test_the_fast_shift_is_the_librarys_own_encoding() -> None:
    model: Any = made(replace(SMALL, layers=1))
    attention, block = model.blocks[0].attention, model.blocks[0]
    text = tokens(9)
    states, _ = model.states(text, model.no_memory(2, 0))
    encoding = Sinusoidal(16, 2, dtype=torch.float64)
    with torch.no_grad():
        encoding.u.copy_(model.content_bias)
        encoding.v.copy_(model.position_bias)
        encoding.position_proj.weight.copy_(attention.position.weight)
    x = model.words.embedded(text) * 4.0
    q = attention.query(x).unflatten(-1, (2, 8)).transpose(1, 2)
    k, v = attention.key_value(x).unflatten(-1, (2, 2, 8)).permute(2, 0, 3, 1, 4)
    scale = 8**-0.5
    logits = scale * q @ k.mT + encoding.pair_bias(q, k, scale, None)
    logits = logits.masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
    heard = attention.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(-2))
    x = block.attention_norm(x + heard)
    x = block.norm(x + block.second(torch.relu(block.first(x))))
    torch.testing.assert_close(states, x, rtol=1e-12, atol=1e-12)


def test_shifted_rows_are_looked_up_by_distance() -> None:
    n, n_k = 5, 12
    rows = torch.randn(3, n, n_k)
    found = by_distance(rows)
    for i in range(n):
        for j in range(i + n_k - n + 1):
            distance = i + n_k - n - j
            assert torch.equal(found[:, i, j], rows[:, i, n_k - 1 - distance])


def test_a_gain_of_ones_is_transformer_xl_bit_for_bit() -> None:
    torch.manual_seed(0)
    plain = TransformerXLModel(SMALL)
    text = tokens(24)
    wanted = read(plain, text, 6, 12)
    for gain in ("shared", "layer"):
        torch.manual_seed(0)
        model = TransformerXLModel(replace(SMALL, gain=gain))
        assert all(
            torch.equal(p, dict(model.named_parameters())[name])
            for name, p in plain.named_parameters()
        )
        assert torch.equal(read(model, text, 6, 12), wanted)
        with torch.no_grad():
            model.gains[0].table[:, 3] = 1.5
        assert not torch.equal(read(model, text, 6, 12), wanted)


def test_same_length_is_a_sliding_window_however_the_text_is_cut() -> None:
    model = made(replace(SMALL, gain="shared", layers=1))
    text = tokens(24)
    view = View(same_length=True)
    wanted = read(model, text, 6, 8, view)
    for n in (1, 5, 24):
        torch.testing.assert_close(
            read(model, text, n, 8, view), wanted, rtol=1e-13, atol=1e-13
        )
    # One layer: token 20 sees 13 .. 20 and nothing else.
    for place, seen in ((12, False), (13, True)):
        other = text.clone()
        other[:, place] = (other[:, place] + 1) % 30
        apart = (read(model, other, 6, 8, view) - wanted)[:, 20].abs().max()
        assert bool(apart > 1e-9) == seen
    deep = made(replace(SMALL, gain="shared"))
    torch.testing.assert_close(
        read(deep, text, 5, 8, view), read(deep, text, 24, 8, view), rtol=1e-12, atol=1e-12
    )


def test_clamped_distances_share_the_last_entries() -> None:
    model = made(replace(SMALL, gain="shared"))
    text = tokens(24)
    free = read(model, text, 6, 18)
    assert torch.equal(read(model, text, 6, 18, View(clamp=30)), free)
    clamped = read(model, text, 6, 18, View(clamp=7))
    torch.testing.assert_close(clamped[:, :8], free[:, :8])
    assert not torch.allclose(clamped[:, 9:], free[:, 9:])
    with torch.no_grad():
        model.gains[0].table[:, 8:] = 100.0
    assert torch.equal(read(model, text, 6, 18, View(clamp=7)), clamped)


def test_no_gradient_reaches_the_memory() -> None:
    model = made(replace(SMALL, gain="shared"))
    text = tokens(12)
    _, memory = model.states(text[:, :6], model.no_memory(2, 6))
    assert not memory.states.requires_grad
    leaf = memory.states.clone().requires_grad_()
    states, after = model.states(text[:, 6:], Remembered(leaf, memory.filled))
    assert not after.states.requires_grad
    gradients: Any = torch.autograd.grad(
        states.sum(), [leaf, *model.parameters()], allow_unused=True
    )
    names = ["memory", *dict(model.named_parameters())]
    unused = {n for n, g in zip(names, gradients, strict=True) if g is None}
    assert unused == {"words.word_bias"}


def test_empty_places_are_not_tokens() -> None:
    """A sequence that begins in a batch with one that goes on reads as it would alone."""
    model = made(SMALL)
    text = tokens(12)
    _, memory = model.states(text[:, :6], model.no_memory(2, 6))
    mixed = Remembered(memory.states, torch.tensor([6, 0]))
    both, _ = model.states(text[:, 6:], mixed)
    alone, _ = model.states(text[1:, 6:], model.no_memory(1, 0))
    torch.testing.assert_close(both[1:], alone, rtol=1e-13, atol=1e-13)


def test_the_base_model_has_the_papers_parameters() -> None:
    base = TransformerXLConfig(vocab_size=267_735, cutoffs=(20_000, 40_000, 200_000))
    count = sum(p.numel() for p in TransformerXLModel(base, device="meta").parameters())
    assert count == 151_107_538
    gained = TransformerXLModel(replace(base, gain="shared"), device="meta")
    assert sum(p.numel() for p in gained.parameters()) - count == 10 * 300


def test_learnt_gains_of_the_past_are_found() -> None:
    model = made(replace(SMALL, gain="layer"))
    found = learnt_positions(model)
    assert list(found) == ["C0", "C1", "C2"]
    table = model.gains[1].table.detach().float()
    assert torch.equal(found["C1"], torch.cat([torch.ones(2, 47), table], 1))
    assert isinstance(model.gains[1], ToeplitzGain)
    assert model.gains[1].index == Past(47)


def test_what_cannot_be_read_is_refused() -> None:
    model = made(replace(SMALL, gain="shared"))
    text = tokens(6)
    with pytest.raises(InputError, match=r"distances up to 55, and max_len=48 .*clamp=47"):
        model.states(text, model.no_memory(2, 50))
    model.states(text, model.no_memory(2, 50), View(clamp=47))
    with pytest.raises(InputError, match=r"clamp=48 have distances up to 48"):
        model.states(text, model.no_memory(2, 50), View(clamp=48))
    with pytest.raises(InputError, match="3 layers, 3 sequences and width 16"):
        model.states(text, model.no_memory(3, 6))
    with pytest.raises(InputError, match="memory of 0 places"):
        model.states(text, model.no_memory(2, 0), View(same_length=True))
    with pytest.raises(InputError, match=r"dim=15 is odd.*gain='all'.*dropout=1.0"):
        replace(SMALL, dim=15, gain="all", dropout=1.0)
    with pytest.raises(InputError, match="heads x head_dim = 2 x 4"):
        replace(SMALL, head_dim=4, encoding="t5")
