"""Wrong input gives an error that says what was given, why not, and what to do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.layers.plain import tokens
from torch import nn

from everyformer.errors import InputError
from everyformer.layers import (
    T5,
    Alibi,
    Deberta,
    Graph,
    GraphGain,
    Graphormer,
    RelativeAttention,
    Rotary,
    Shaw,
    SparseAttention,
    Swin,
    T5Buckets,
    ToeplitzGain,
    TransformerXL,
    load_official_gain,
    shortest_paths,
)
from everyformer.layers.masked_attention import MaskedAttention
from everyformer.patterns import strided

Make = Callable[[], Any]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RelativeAttention(0, 2), r"embed_dim=0 .*whole number, 1 or more"),
        (lambda: RelativeAttention(8, -1), r"num_heads=-1"),
        (lambda: RelativeAttention(8, 3), r"embed_dim=8 .*num_heads=3.*multiple is 9"),
        (lambda: RelativeAttention(8, 2, dropout=1.0), r"dropout=1.0 .*\[0, 1\)"),
        (lambda: RelativeAttention(8, 2, dropout=-0.1), r"dropout=-0.1"),
        (lambda: RelativeAttention(8, 3, dropout=2.0), r"embed_dim=8.*dropout=2.0"),
        (lambda: RelativeAttention(8, 2, max_len=0), r"max_len=0"),
        (lambda: RelativeAttention(8, 2, encoding="t6"), r"'t6'.*t5.*Swin\(\.\.\.\)"),
        (lambda: RelativeAttention(8, 2, encoding="swin"), r"'swin'.*window"),
        (lambda: RelativeAttention(8, 4, encoding=T5(2, 9)), r"num_heads=2 .*has 4"),
        (lambda: RelativeAttention(8, 4, encoding=Alibi(2)), r"num_heads=2 .*has 4"),
        (lambda: RelativeAttention(8, 2, encoding=Swin(3, 2)), r"num_heads=3"),
        (lambda: RelativeAttention(8, 2, encoding=Graphormer(3, 2)), r"num_heads=3"),
        (lambda: RelativeAttention(8, 2, encoding=Shaw(5, 9)), r"head_dim=5 .*has 4"),
        (
            lambda: RelativeAttention(8, 2, encoding=Deberta(4, 2, 9)),
            r"num_heads=4 .*has 2.*head_dim=2 .*has 4",
        ),
        (
            lambda: RelativeAttention(8, 2, encoding=TransformerXL(8, 4)),
            r"num_heads=4.*head_dim=2",
        ),
        (lambda: RelativeAttention(6, 2, encoding=Rotary()), r"3 coordinates.*even"),
        (lambda: RelativeAttention(8, 2, gain=ToeplitzGain(4, 9)), r"4 heads.*layer 2"),
        (lambda: TransformerXL(7, 1), r"embed_dim=7 is odd"),
        (lambda: Rotary(theta=0.0), r"theta=0"),
        (lambda: ToeplitzGain(0, 9), r"num_heads=0"),
        (lambda: GraphGain(2, 0), r"max_distance=0"),
        (
            lambda: load_official_gain(ToeplitzGain(2, 3), torch.ones(2, 5)),
            r"\(2, 5\).*\(5, 2\)",
        ),
        (
            lambda: load_official_gain(
                ToeplitzGain(1, buckets=T5Buckets(8, 16)), torch.ones(8, 1)
            ),
            r"without buckets",
        ),
    ],
)
def test_settings(make: Make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": nn.Linear(2, 2)}, r"not an encoding.*Pass one"),
        ({"encoding": 3}, r"encoding=3"),
        ({"gain": torch.ones(3)}, r"not a gain.*Pass one"),
        ({"implementation": "fast"}, r"'fast'.*'auto' or 'reference'"),
    ],
)
def test_settings_of_a_wrong_type(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RelativeAttention(8, 2, **settings)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.ones(2, 5, 7), None, r"\(2, 5, 7\).*\(\*batch, n, 8\)"),
        (torch.ones(8), None, r"\(8,\)"),
        (torch.ones(2, 5, 8, dtype=torch.long), None, r"torch.int64.*floating"),
        (torch.ones(2, 5, 8), torch.ones(2, 5), r"torch.float32; give one bool per token"),
        (
            torch.ones(2, 5, 8),
            torch.ones(5, 2, dtype=torch.bool),
            r"\(5, 2\).*one bool per token, \(2, 5\)",
        ),
        (torch.ones(2, 17, 8), None, r"17 tokens.*max_len=16.*clamp=True"),
    ],
)
def test_inputs(x: torch.Tensor, mask: torch.Tensor | None, message: str) -> None:
    for encoding, gain in (("t5", None), ("none", True), ("shaw", None), ("deberta", True)):
        layer = RelativeAttention(8, 2, encoding=encoding, gain=gain, max_len=16)
        with pytest.raises(InputError, match=message):
            layer(x, key_padding_mask=mask)


def test_padding_on_another_device() -> None:
    """Where a mask of all pairs is made, numbers would come out that mean nothing."""
    hidden = torch.zeros(1, 5, dtype=torch.bool, device="meta")
    for layer in (
        RelativeAttention(8, 2),
        SparseAttention(8, 2, strided(5, 2)),
        MaskedAttention(8, 2, strided(5, 2)),
    ):
        with pytest.raises(InputError, match="key_padding_mask lies on meta, x on cpu"):
            layer(torch.ones(1, 5, 8), key_padding_mask=hidden)


def test_tokens_on_another_device() -> None:
    x, far = torch.ones(1, 5, 8), torch.ones(1, 5, 8, device="meta")
    layers = RelativeAttention(8, 2), SparseAttention(8, 2, strided(5, 2))
    for layer in (*layers, MaskedAttention(8, 2, strided(5, 2))):
        with pytest.raises(InputError, match="x lies on meta, its weights on cpu"):
            layer(far)
    for layer in layers:
        with pytest.raises(InputError, match="context lies on meta, its weights on cpu"):
            layer(x, context=far, offset=0)


@pytest.mark.unhooked
def test_what_is_not_a_tensor() -> None:
    x: Any = torch.ones(1, 5, 8)
    for layer in (
        RelativeAttention(8, 2),
        SparseAttention(8, 2, strided(5, 2)),
        MaskedAttention(8, 2, strided(5, 2)),
    ):
        with pytest.raises(InputError, match="x is of type list; give a tensor"):
            layer(x.tolist())
        with pytest.raises(InputError, match="key_padding_mask is of type list; give a t"):
            layer(x, key_padding_mask=[[False] * 5])
        if not isinstance(layer, MaskedAttention):
            with pytest.raises(
                InputError, match="attn_mask is of type list; give a tensor"
            ):
                layer(x, attn_mask=[[True] * 5] * 5)
            with pytest.raises(InputError, match="context is of type list; give a tensor"):
                layer(x, context=x.tolist(), offset=0)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (None, r"No graph.*shortest_paths"),
        (Graph(torch.zeros(4, 4, dtype=torch.long)), r"\(4, 4\).*5 nodes"),
        (Graph(torch.zeros(5, 5)), r"float32.*integers"),
        (Graph(torch.full((5, 5), 9)), r"9 to 9.*max_distance"),
        (Graph(torch.full((5, 5), -3)), r"-3 to -3"),
        (Graph(torch.zeros(5, 5, dtype=torch.long)), r"path_edges is None.*2 edges"),
    ],
)
def test_graphs(graph: Graph | None, message: str) -> None:
    encoding = Graphormer(2, 4, edge_dim=3, max_steps=2)
    layer = RelativeAttention(8, 2, encoding=encoding)
    with pytest.raises(InputError, match=message):
        layer(tokens(1, 5, 8, dtype=torch.float32), graph=graph)


@pytest.mark.unhooked
def test_adjacency_and_windows() -> None:
    with pytest.raises(InputError, match=r"square matrix of bools.*\.bool\(\)"):
        shortest_paths(torch.ones(3, 3))
    with pytest.raises(InputError, match=r"\(2, 3\)"):
        shortest_paths(torch.ones(2, 3, dtype=torch.bool))
    layer = RelativeAttention(8, 2, encoding=Swin(2, 3))
    with pytest.raises(InputError, match=r"8 tokens.*3 x 3 has 9"):
        layer(torch.ones(1, 8, 8))
