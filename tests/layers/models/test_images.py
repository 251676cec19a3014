"""Windows of images, and what becomes of outputs when an image moves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from everyformer.errors import InputError
from everyformer.experiments.urpe_images.moving import moved_change, renumbered_change
from everyformer.layers import (
    HeadGain,
    ImageConfig,
    ImageEncoder,
    RelativeAttention,
    ShiftedWindows,
    Swin,
    WindowGain,
)
from everyformer.layers.shifted_windows import cut, joined
from everyformer.model.attention_spec import spec_of

WIDTH, HEADS, M = 8, 2, 4


def attention(*, gain: bool = True, seed: int = 0) -> RelativeAttention:
    torch.manual_seed(seed)
    layer = RelativeAttention(
        WIDTH, HEADS, encoding=Swin(HEADS, M), gain=WindowGain(HEADS, M) if gain else None
    ).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def rolled(
    layer: RelativeAttention, x: Tensor, grid: tuple[int, int], shift: int
) -> Tensor:
    """As Liu et al. 2021: the image is rolled round, and strangers are masked.

    Their windows begin at +s, which is ours at s - M.
    """
    shift = M - shift
    rows, columns = grid
    image = x.reshape(rows, columns, -1).roll((-shift, -shift), (0, 1))
    region = torch.zeros(rows, columns, dtype=torch.long)
    for part in (slice(-M, -shift), slice(-shift, None)):
        region[part] += 1 if part.stop else 2
        region[:, part] += 4 if part.stop else 8
    out = torch.empty_like(image)
    for top in range(0, rows, M):
        for left in range(0, columns, M):
            place = (slice(top, top + M), slice(left, left + M))
            tokens, kinds = image[place].reshape(M * M, -1), region[place].flatten()
            found = torch.empty_like(tokens)
            for kind in kinds.unique():  # strangers see only their own kind
                mixed = layer(tokens[None], key_padding_mask=(kinds != kind)[None])
                found[kinds == kind] = mixed[0, kinds == kind]
            out[place] = found.reshape(M, M, -1)
    return out.roll((shift, shift), (0, 1)).reshape(rows * columns, -1)


@pytest.mark.parametrize("shift", [1, 2])
def test_shifted_windows_are_those_of_swin(shift: int) -> None:
    layer, grid = attention(), (8, 12)
    x = torch.randn(96, WIDTH, dtype=torch.float64)
    ours = ShiftedWindows(layer, grid, M, shift)(x[None])[0]
    assert torch.allclose(ours, rolled(layer, x, grid, shift), atol=1e-12)
    plain = ShiftedWindows(layer, grid, M)(x[None])[0]
    assert (ours - plain).abs().max() > 1e-3, "the shift matters"


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("grid", [(4, 4), (3, 9), (6, 5)])
def test_windows_are_put_together_again(grid: tuple[int, int], shift: int) -> None:
    x = torch.randn(2, grid[0] * grid[1], 3)
    assert torch.equal(joined(cut(x, grid, M, shift), grid, M, shift), x)


def test_no_token_outside_the_image_is_seen() -> None:
    """A single window that the image does not fill: as if the rest were not there."""
    layer, grid = attention(), (2, 3)
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    inside = torch.zeros(M, M, dtype=torch.bool)
    inside[:2, :3] = True
    whole = torch.randn(1, M * M, WIDTH, dtype=torch.float64)
    whole[:, inside.flatten()] = x
    alone = layer(whole, key_padding_mask=~inside.flatten()[None])[:, inside.flatten()]
    assert torch.allclose(ShiftedWindows(layer, grid, M)(x), alone, atol=1e-12)
    hidden = torch.zeros(1, 6, dtype=torch.bool)
    hidden[0, 5] = True
    masked = ShiftedWindows(layer, grid, M)(x, key_padding_mask=hidden)
    x[0, 5] += 1.0
    again = ShiftedWindows(layer, grid, M)(x, key_padding_mask=hidden)
    assert torch.equal(masked[:, :5], again[:, :5]), "a hidden token is not seen"


def test_an_object_in_a_window_may_be_moved() -> None:
    """By any offset; the rest of the window is padding."""
    layer = attention()
    thing = torch.randn(2, 2, WIDTH, dtype=torch.float64)
    found: list[Tensor] = []
    for top, left in ((0, 0), (1, 2), (2, 1)):
        window = torch.zeros(M, M, WIDTH, dtype=torch.float64)
        inside = torch.zeros(M, M, dtype=torch.bool)
        window[top : top + 2, left : left + 2] = thing
        inside[top : top + 2, left : left + 2] = True
        places = inside.flatten()
        out = layer(window.reshape(1, M * M, WIDTH), key_padding_mask=~places[None])
        found.append(out[0, places])
    assert torch.allclose(found[0], found[1], atol=1e-12)
    assert torch.allclose(found[0], found[2], atol=1e-12)


@pytest.mark.parametrize("encoding", ["none", "swin", "swin+urpe", "swin+c1"])
def test_relative_encodings_commute_with_translation(encoding: str) -> None:
    for seed in range(3):
        assert moved_change(encoding, seed=seed) < 1e-12
    assert moved_change(encoding, patches=1) > 1e-3, "not by less than a window"


def test_absolute_positions_do_not_commute_with_translation() -> None:
    assert min(moved_change("ape", seed=seed) for seed in range(3)) > 0.1


def test_graphs_may_be_renumbered_unless_positions_are_absolute() -> None:
    for encoding in ("graphormer", "graphormer+urpe"):
        assert renumbered_change(encoding) < 1e-12
    assert renumbered_change("ape") > 0.1


def test_a_gain_of_ones_is_swin_bit_for_bit() -> None:
    config = ImageConfig(8, 1, 16, patch=1, window=M, classes=3, dim=8, heads=2)
    pixels = torch.randint(0, 17, (2, 64))
    found: list[Tensor] = []
    for encoding in ("swin", "swin+urpe", "swin+c1"):
        torch.manual_seed(0)
        encoder = ImageEncoder(replace(config, encoding=encoding))
        found.append(encoder(pixels))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_control_is_not_proved_universal() -> None:
    """One number for each head breaks no tie between equal tokens."""
    layer = RelativeAttention(4, 2, encoding="t5", gain=HeadGain(2), max_len=4).double()
    with torch.no_grad():
        layer.gain.table.normal_()  # pyright: ignore[reportOptionalMemberAccess]
    x = torch.randn(4, dtype=torch.float64).expand(1, 4, 4)
    out = layer(x)
    assert isinstance(out, Tensor)
    assert torch.allclose(out[0, 0], out[0, 3]), "rows of C have equal sums"
    for n in (4, None):
        spec = spec_of(layer, n)
        assert spec is not None
        assert spec.gain_rows == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="encoding='urpe' is unknown; use one of none"):
        ImageConfig(8, 1, 16, patch=1, window=4, classes=2, encoding="urpe")
    with pytest.raises(InputError, match="8 pixels are not a multiple of patches of 3"):
        ImageConfig(8, 1, 16, patch=3, window=4, classes=2)
    with pytest.raises(InputError, match="shift=4 does not shift windows of 4 x 4"):
        ShiftedWindows(attention(), (8, 8), M, 4)
    with pytest.raises(InputError, match="x has 5 tokens, and a grid of 2 x 3 has 6"):
        ShiftedWindows(attention(), (2, 3), M)(torch.zeros(1, 5, WIDTH).double())
    encoder = ImageEncoder(ImageConfig(8, 1, 16, patch=1, window=4, classes=2))
    with pytest.raises(InputError, match="An image has 63 numbers, and 8 x 8 pixels"):
        encoder(torch.zeros(1, 63, dtype=torch.long))
