"""What becomes of the outputs when an image is moved, or the nodes of a graph renumbered.

Luo et al. 2022 (slides): images and graphs "require several transformation-invariant
properties, such as rotation and translation, which are difficult to be satisfied by APE".
An encoder that depends on offsets in windows alone commutes with a translation by whole
windows, wherever the edge of the image is too far away to be felt; a layer that depends on
distances in a graph commutes with every renumbering of the nodes.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings import Graphormer
from everyformer.layers.gains import GraphGain
from everyformer.layers.graphs.graph import Graph, shortest_paths
from everyformer.layers.models.image_encoder import ImageConfig, ImageEncoder
from everyformer.layers.positions import AbsolutePositions

SCENE = ImageConfig(
    side=32, channels=1, levels=15, patch=2, window=4, classes=2, dim=8, heads=2, ffn=8
)
"""Sixteen patches in a row: four windows, of which those in the middle feel no edge."""

NODES = 7


def moved_change(encoding: str, *, patches: int | None = None, seed: int = 0) -> float:
    """The largest change of a state when the image moves to the right.

    Of two blocks the second has windows that reach over the edge by half a window; states
    are compared that are in none of these, before and after.

    Args:
        encoding: One of `IMAGE_ENCODINGS`.
        patches: How far; by default one window.
        seed: Of weights and image.
    """
    config = replace(SCENE, encoding=encoding)
    apart = config.window if patches is None else patches
    step, side = apart * config.patch, config.side
    encoder = ImageEncoder(config)
    _draw_anew(encoder, seed)
    draw = torch.Generator().manual_seed(seed)
    scene = torch.randint(0, config.levels + 1, (side, side + step), generator=draw)
    with torch.no_grad():
        before, after = (
            encoder.states(part.flatten()).unflatten(0, config.grid)
            for part in (scene[:, step:], scene[:, :side])
        )
    edge, end = config.window // 2, config.grid[0] - config.window // 2
    rows = slice(edge, end)
    change = before[rows, edge : end - apart] - after[rows, edge + apart : end]
    return float(change.abs().max())


def renumbered_change(encoding: str, *, seed: int = 0) -> float:
    """The largest change of an output when the nodes of a path are renumbered.

    Args:
        encoding: "ape", "graphormer" or "graphormer+urpe".
        seed: Of weights, nodes and their new numbers.
    """
    heads, width = 2, 8
    relative = encoding.startswith("graphormer")
    gained = encoding.endswith("+urpe")
    layer = RelativeAttention(
        width,
        heads,
        encoding=Graphormer(heads, NODES) if relative else None,
        gain=GraphGain(heads, NODES) if gained else None,
    )
    model = layer if relative else AbsolutePositions(layer, NODES, width)
    _draw_anew(model, seed)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1, NODES, width, generator=draw, dtype=torch.float64)
    order = torch.randperm(NODES, generator=draw)
    places = torch.arange(NODES)
    distance = shortest_paths((places[:, None] - places).abs() == 1).distance
    with torch.no_grad():
        plain = _outputs(model, x, distance, relative)
        renumbered = _outputs(model, x[:, order], distance[order][:, order], relative)
    return float((plain[:, order] - renumbered).abs().max())


def _outputs(model: nn.Module, x: Tensor, distance: Tensor, relative: bool) -> Tensor:
    return model(x, graph=Graph(distance)) if relative else model(x)


def _draw_anew(model: nn.Module, seed: int) -> None:
    """All parameters in float64 and drawn anew, so that tables matter."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.double().parameters():
            drawn = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.copy_(0.5 * drawn)
