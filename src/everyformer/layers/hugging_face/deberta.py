"""DeBERTa of the library transformers, with our operator as the core of its attention.

Their encoder makes an n x n matrix of relative positions and one of the mask, and each
layer gathers n x n numbers for each head. Here the encoder hands on the mask as it is and
one number for each offset, and a layer runs `disentangled_attention`: the same numbers in
O(n (d + buckets)) memory, but that dropped weights are other ones. Where a layer returns
weights, or is given something else, matrices are made of these and the original code runs.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.hugging_face.swapping import Swapped, original, swap, unswap
from everyformer.layers.kept_indexes import kept_index
from everyformer.layers.weights import operator_takes
from everyformer.ops import disentangled_attention
from everyformer.ops.disentangled_attention.operator import MAX_HEAD_SIZE
from everyformer.ops.disentangled_attention.reference import bucket_matrix
from everyformer.ops.eager import is_plain
from everyformer.ops.recalled import Recalled

FIRST = "transformers.models.deberta.modeling_deberta"
SECOND = "transformers.models.deberta_v2.modeling_deberta_v2"
ENCODERS = {(FIRST, "DebertaEncoder"), (SECOND, "DebertaV2Encoder")}
"""The encoders that are known, by file and name."""

_ROWS = Recalled()
"""The rows of the offsets, of vectors of relative positions."""


def adapt(model: nn.Module) -> None:
    """Let all encoders of DeBERTa in a model use the operator; weights stay as they are.

    Raises:
        InputError: If the model has no such encoder, or others changed its attention.
    """
    encoders: list[Any] = [part for part in model.modules() if _is_encoder(part)]
    if not encoders:
        names = ", ".join(sorted(name for _, name in ENCODERS))
        msg = f"{type(model).__name__} holds no encoder of DeBERTa; known are {names} of "
        raise InputError(f"{msg}transformers. Give a model with one.")
    for encoder in encoders:
        for kind in (original(layer.attention.self) for layer in encoder.layer):
            if kind.__module__ != type(encoder).__module__:
                msg = (
                    f"The attention of this {type(encoder).__name__} is a "
                    f"{kind.__module__}.{kind.__name__}, of which nothing is known. Adapt "
                    "the model before others change it."
                )
                raise InputError(msg)
    for encoder in encoders:
        ours = First if type(encoder).__module__ == FIRST else Second
        swap(encoder, Encoder)
        for layer in encoder.layer:
            swap(layer.attention.self, ours)


def restore(model: nn.Module) -> None:
    """Undo `adapt`."""
    for part in model.modules():
        if isinstance(part, (Encoder, Core)):
            unswap(part)


def _is_encoder(module: nn.Module) -> bool:
    kind = original(module)
    return (kind.__module__, kind.__name__) in ENCODERS


class Encoder(Swapped):
    """Goes before `DebertaEncoder` and `DebertaV2Encoder`."""

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """The mask as it is, (b, n), if it is one of tokens."""
        if attention_mask.dim() == 2:
            return attention_mask
        theirs: Any = super()
        return theirs.get_attention_mask(attention_mask)

    def get_rel_pos(
        self,
        hidden_states: Tensor,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
    ) -> Tensor | None:
        """The relative position of each offset, (2 n - 1); the most negative one first."""
        this: Any = self
        others = query_states is not None or relative_pos is not None
        if others or not this.relative_attention:
            theirs: Any = super()
            return theirs.get_rel_pos(hidden_states, query_states, relative_pos)
        n, device = hidden_states.size(-2), hidden_states.device
        sizes = getattr(this, "position_buckets", -1), this.max_relative_positions

        def make() -> Tensor:
            offsets = torch.arange(1 - n, n, device=device)
            if min(sizes) <= 0:
                return offsets
            return sys.modules[SECOND].make_log_bucket_position(offsets, *sizes).long()

        return kept_index(("relative positions", n, sizes), device, make)


class Core(Swapped):
    """Goes before the two classes `DisentangledSelfAttention`."""

    _projected: Callable[[Tensor], tuple[Tensor, ...]]
    """Queries, keys and values of tokens."""

    _of_rows: Callable[[], tuple[int, str, str]]
    """Half the number of rows of the table, and the names of the projections with which
    queries and keys meet them."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As the original, which runs where the operator does not compute the same."""
        fits = not output_attentions and query_states is None
        by_offset = relative_pos is not None and relative_pos.dim() == 1
        of_tokens = attention_mask.dim() == 2
        if (
            rel_embeddings is not None
            and relative_pos is not None
            and (fits and by_offset and of_tokens and self._is_known(hidden_states))
        ):
            seen = attention_mask.bool()
            return self._attend(hidden_states, seen, relative_pos, rel_embeddings), None
        if of_tokens:
            each = attention_mask[:, None, :, None]
            attention_mask = each * each.mT
        if relative_pos is not None and by_offset:
            n = hidden_states.size(-2)
            relative_pos = bucket_matrix(relative_pos, range(n), n)[None]
        theirs: Any = super()
        return theirs.forward(
            hidden_states, attention_mask, output_attentions, query_states=query_states,
            relative_pos=relative_pos, rel_embeddings=rel_embeddings,
        )  # fmt: skip

    def _attend(
        self, x: Tensor, seen: Tensor, relative_pos: Tensor, rows: Tensor
    ) -> Tensor:
        """What all heads see, (b, n, h d), by the operator.

        A query that is padding itself has logits of the same finite size, and so the mean
        of all values.
        """
        core: Any = self
        q, k, v = self._projected(x)
        span, by_queries, by_keys = self._of_rows()
        rows, index = _reached(core, x, relative_pos, rows, span)

        def products(kind: str, of: Tensor, name: str) -> Tensor | None:
            """of_i . r_b of each head, (b, h, n, buckets)."""
            if kind not in core.pos_att_type:
                return None
            return of @ _heads(core, getattr(core, name)(rows)).mT.to(of.dtype)

        out = disentangled_attention(
            q, k, v, products("c2p", q, by_queries), products("p2c", k, by_keys), index,
            key_padding=~seen, dropout=core.dropout.p if core.training else 0.0,
        )  # fmt: skip
        out = torch.where(seen[:, None, :, None], out, v.mean(-2, keepdim=True))
        return out.transpose(1, 2).flatten(-2)

    def _is_known(self, x: Tensor) -> bool:
        """Whether the terms are those of DeBERTa, and the operator takes the heads."""
        this: Any = self
        kinds = list(this.pos_att_type)
        return (
            sorted(kinds) in (["c2p"], ["p2c"], ["c2p", "p2c"])
            and not getattr(this, "talking_head", False)
            and operator_takes(x[..., None, : this.attention_head_size], MAX_HEAD_SIZE)
        )


class First(Core):
    """Goes before that of DeBERTa."""

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """By the projections of that class."""
        core: Any = self
        q, k, v = core.transpose_for_scores(core.in_proj(x)).chunk(3, dim=-1)
        q = q + core.transpose_for_scores(core.q_bias[None, None, :])
        v = v + core.transpose_for_scores(core.v_bias[None, None, :])
        return q, k.to(q.dtype), v  # with autocast only that of keys has no bias in float32

    def _of_rows(self) -> tuple[int, str, str]:
        """Half of the rows, and what they are projected by."""
        core: Any = self
        return core.max_relative_positions, "pos_proj", "pos_q_proj"


class Second(Core):
    """Goes before that of DeBERTa-v2 and v3."""

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """By the projections of that class."""
        core: Any = self
        projections = core.query_proj, core.key_proj, core.value_proj
        return tuple([_heads(core, project(x)) for project in projections])

    def _of_rows(self) -> tuple[int, str, str]:
        """Half of the rows, and what they are projected by."""
        core: Any = self
        own = "" if core.share_att_key else "pos_"
        return core.pos_ebd_size, f"{own}key_proj", f"{own}query_proj"


def _heads(core: Any, x: Tensor) -> Tensor:
    """(.., n, h d) as (.., h, n, d)."""
    return x.unflatten(-1, (core.num_attention_heads, -1)).transpose(-2, -3)


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
