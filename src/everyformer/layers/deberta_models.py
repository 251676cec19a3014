"""DeBERTa of the library transformers, with our operator as the core of its attention.

Their encoder makes an n x n matrix of relative positions and one of the mask, and each
layer gathers n x n numbers for each head. Here the encoder hands on the mask as it is and
one number for each offset, and a layer runs `disentangled_attention`: the same numbers in
O(n (d + buckets)) memory, but that dropped weights are other ones. Where a layer returns
weights, or is given something else, matrices are made of these and the original code runs.
"""

import sys
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.kept_indexes import kept_index
from everyformer.layers.weights import operator_takes
from everyformer.ops import disentangled_attention
from everyformer.ops.disentangled_attention.reference import bucket_matrix
from everyformer.ops.eager import is_plain
from everyformer.ops.recalled import Recalled

LIBRARIES = {
    "DebertaEncoder": "transformers.models.deberta.modeling_deberta",
    "DebertaV2Encoder": "transformers.models.deberta_v2.modeling_deberta_v2",
}
"""The encoders that are known, and where they come from."""

CHANGED = ("get_attention_mask", "get_rel_pos")
"""Methods of an encoder that are replaced."""

_ROWS = Recalled()
"""The rows of the offsets, of vectors of relative positions."""


def is_deberta(module: nn.Module) -> bool:
    """Whether this is an encoder of DeBERTa, version 1, 2 or 3, or holds one."""
    return any(_is_encoder(part) for part in module.modules())


def _is_encoder(module: nn.Module) -> bool:
    kind = type(module)
    return LIBRARIES.get(kind.__name__) == kind.__module__


def adapt(module: nn.Module) -> None:
    """Let all encoders of DeBERTa in a module use the operator; weights stay as they are.

    Args:
        module: An encoder, or a model with some.

    Raises:
        InputError: If there is none, or one whose attention has been changed by others.
    """
    encoders: list[Any] = [part for part in module.modules() if _is_encoder(part)]
    if not encoders:
        msg = (
            f"{type(module).__name__} holds no encoder of DeBERTa; known are "
            f"{', '.join(sorted(LIBRARIES))} of transformers. Give a model with one."
        )
        raise InputError(msg)
    for encoder in encoders:
        for layer in encoder.layer:
            kind = type(layer.attention.self)
            if kind.__module__ != type(encoder).__module__:
                msg = (
                    f"The attention of this {type(encoder).__name__} is a "
                    f"{kind.__module__}.{kind.__name__}, of which nothing is known. Adapt "
                    "the model before others change it."
                )
                raise InputError(msg)
    for encoder in encoders:
        second = type(encoder).__name__ == "DebertaV2Encoder"
        encoder.get_attention_mask = MethodType(get_attention_mask, encoder)
        encoder.get_rel_pos = MethodType(get_rel_pos, encoder)
        for layer in encoder.layer:
            core = layer.attention.self
            core.forward = MethodType(_second if second else _first, core)


def restore(module: nn.Module) -> None:
    """Undo `adapt`."""
    for encoder in module.modules():
        if not _is_encoder(encoder):
            continue
        layers: Any = encoder.layer
        for part, name in (
            *((encoder, name) for name in CHANGED),
            *((layer.attention.self, "forward") for layer in layers),
        ):
            vars(part).pop(name, None)


def get_attention_mask(self: Any, attention_mask: Tensor) -> Tensor:
    """The mask as it is, (b, n), if it is one of tokens."""
    if attention_mask.dim() == 2:
        return attention_mask
    return type(self).get_attention_mask(self, attention_mask)


def get_rel_pos(
    self: Any,
    hidden_states: Tensor,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
) -> Tensor | None:
    """The relative position of each offset, (2 n - 1); the most negative one first."""
    others = query_states is not None or relative_pos is not None
    if others or not self.relative_attention:
        return type(self).get_rel_pos(self, hidden_states, query_states, relative_pos)
    n, device = hidden_states.size(-2), hidden_states.device
    sizes = getattr(self, "position_buckets", -1), self.max_relative_positions

    def make() -> Tensor:
        offsets = torch.arange(1 - n, n, device=device)
        if min(sizes) <= 0:
            return offsets
        library = sys.modules[LIBRARIES["DebertaV2Encoder"]]
        return library.make_log_bucket_position(offsets, *sizes).long()

    return kept_index(("relative positions", n, sizes), device, make)


def _fits(
    core: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool,
    query_states: Tensor | None,
    relative_pos: Tensor | None,
    rel_embeddings: Tensor | None,
) -> bool:
    """Whether the operator computes what is asked for."""
    if relative_pos is None or relative_pos.dim() != 1 or attention_mask.dim() != 2:
        return False
    kinds = set(core.pos_att_type)
    return (
        not (output_attentions or query_states is not None)
        and rel_embeddings is not None
        and bool(kinds)
        and kinds <= {"c2p", "p2c"}
        and len(kinds) == len(core.pos_att_type)
        and not getattr(core, "talking_head", False)
        and operator_takes(hidden_states[..., None, : core.attention_head_size])
    )


def _original(
    core: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool,
    query_states: Tensor | None,
    relative_pos: Tensor | None,
    rel_embeddings: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Their code, with matrices of the mask and of the relative positions."""
    if attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None, None, :] * attention_mask[:, None, :, None]
    if relative_pos is not None and relative_pos.dim() == 1:
        n = hidden_states.size(-2)
        relative_pos = bucket_matrix(relative_pos, range(n), n)[None]
    return type(core).forward(
        core, hidden_states, attention_mask, output_attentions,
        query_states=query_states, relative_pos=relative_pos, rel_embeddings=rel_embeddings,
    )  # fmt: skip


def _replacing(attend: Any) -> Any:
    """A forward pass with the signature of theirs."""

    @wraps(attend)
    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        given = (
            hidden_states, attention_mask, output_attentions, query_states, relative_pos,
            rel_embeddings,
        )  # fmt: skip
        if not _fits(self, *given):
            return _original(self, *given)
        seen = attention_mask.bool()
        return attend(self, hidden_states, seen, relative_pos, rel_embeddings), None

    forward.__name__ = "forward"  # by which a pickled method is found again
    return forward


@_replacing
def _first(
    core: Any, x: Tensor, seen: Tensor, relative_pos: Tensor, rows: Tensor
) -> Tensor:
    """The attention of DeBERTa."""
    q, k, v = core.transpose_for_scores(core.in_proj(x)).chunk(3, dim=-1)
    q = q + core.transpose_for_scores(core.q_bias[None, None, :])
    v = v + core.transpose_for_scores(core.v_bias[None, None, :])
    rows, index = _reached(core, x, relative_pos, rows, core.max_relative_positions)
    c2p = p2c = None
    if "c2p" in core.pos_att_type:
        c2p = _products(core, q, core.pos_proj(rows))
    if "p2c" in core.pos_att_type:
        p2c = _products(core, k, core.pos_q_proj(rows))
    return _attended(core, q, k, v, c2p, p2c, index, seen)


@_replacing
def _second(
    core: Any, x: Tensor, seen: Tensor, relative_pos: Tensor, rows: Tensor
) -> Tensor:
    """The attention of DeBERTa-v2 and v3."""
    q, k, v = (
        _heads(core, project(x))
        for project in (core.query_proj, core.key_proj, core.value_proj)
    )
    rows, index = _reached(core, x, relative_pos, rows, core.pos_ebd_size)
    c2p = p2c = None
    if "c2p" in core.pos_att_type:
        project = core.key_proj if core.share_att_key else core.pos_key_proj
        c2p = _products(core, q, project(rows))
    if "p2c" in core.pos_att_type:
        project = core.query_proj if core.share_att_key else core.pos_query_proj
        p2c = _products(core, k, project(rows))
    return _attended(core, q, k, v, c2p, p2c, index, seen)


def _heads(core: Any, x: Tensor) -> Tensor:
    """(.., n, h d) as (.., h, n, d)."""
    return x.unflatten(-1, (core.num_attention_heads, -1)).transpose(-2, -3)


def _products(core: Any, x: Tensor, rows: Tensor) -> Tensor:
    """x_i . r_b of each head, (b, h, n, buckets)."""
    return x @ _heads(core, rows).mT.to(x.dtype)


def _reached(
    core: Any, x: Tensor, relative_pos: Tensor, rows: Tensor, span: int
) -> tuple[Tensor, Tensor]:
    """The rows of 2 span that n tokens can reach, and the one of each offset among them.

    The row of an offset is its relative position plus span, clipped.
    """
    reach = min(x.size(-2), span)

    def clipped() -> Tensor:
        return (relative_pos + reach).clamp(0, 2 * reach - 1)

    def kept() -> Tensor:
        with torch.inference_mode(False):
            return clipped()

    plain = is_plain(relative_pos)
    index = _ROWS.get(relative_pos, reach, kept) if plain else clipped()
    return core.pos_dropout(rows)[span - reach : span + reach], index


def _attended(
    core: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    c2p: Tensor | None,
    p2c: Tensor | None,
    index: Tensor,
    seen: Tensor,
) -> Tensor:
    """What all heads see, (b, n, h d).

    A query that is padding itself has logits of the same finite size, and so the mean of
    all values.
    """
    dropout = core.dropout.p if core.training else 0.0
    out = disentangled_attention(
        q, k, v, c2p, p2c, index, key_padding=~seen, dropout=dropout
    )
    out = torch.where(seen[:, None, :, None], out, v.mean(-2, keepdim=True))
    return out.transpose(1, 2).flatten(-2)
