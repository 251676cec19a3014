"""Transformer-XL as public code has it: plain PyTorch, every operation on its own.

Written anew after the layout of the released code (Dai et al. 2019): sequences are columns,
q, k and v are computed for memory and segment together, products by `einsum`, a mask that
is made in every forward pass, and a list of memories that grows by concatenation.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from everyformer.layers.models.transformer_xl import TransformerXLConfig, TransformerXLModel


class PeerAttention(nn.Module):
    """Relative attention with partially learnt positions."""

    def __init__(self, config: TransformerXLConfig) -> None:
        """Of the sizes of a config."""
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        inner = config.heads * config.head_dim
        self.qkv_net = nn.Linear(config.dim, 3 * inner, bias=False)
        self.r_net = nn.Linear(config.dim, inner, bias=False)
        self.o_net = nn.Linear(inner, config.dim, bias=False)
        self.drop = nn.Dropout(config.dropout)
        self.layer_norm = nn.LayerNorm(config.dim)
        self.scale = config.head_dim**-0.5

    def forward(
        self, w: Tensor, r: Tensor, u: Tensor, v: Tensor, mask: Tensor, mems: Tensor
    ) -> Tensor:
        """w is (n, b, d), mems (m, b, d), r (m + n, 1, d)."""
        qlen, bsz = w.shape[:2]
        heads = self.qkv_net(torch.cat([mems, w], 0))
        q, k, value = torch.chunk(heads, 3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, self.heads, self.head_dim)
        k = k.view(-1, bsz, self.heads, self.head_dim)
        value = value.view(-1, bsz, self.heads, self.head_dim)
        positions = self.r_net(r).view(-1, self.heads, self.head_dim)
        content = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
        shifted = _rel_shift(torch.einsum("ibnd,jnd->ijbn", q + v, positions))
        score = (content + shifted) * self.scale
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        score = score.masked_fill(mask[:, :, None, None], -float("inf"))
        prob = functional.softmax(score, 1)
        mixed = torch.einsum("ijbn,jbnd->ibnd", prob.to(value.dtype), value)
        mixed = mixed.contiguous().view(qlen, bsz, self.heads * self.head_dim)
        return self.layer_norm(w + self.drop(self.o_net(mixed)))


class PeerBlock(nn.Module):
    """Attention, then two linear layers; post-norm."""

    def __init__(self, config: TransformerXLConfig) -> None:
        """Of the sizes of a config."""
        super().__init__()
        self.dec_attn = PeerAttention(config)
        self.core_net = nn.Sequential(
            nn.Linear(config.dim, config.ffn),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.ffn, config.dim),
            nn.Dropout(config.dropout),
        )
        self.layer_norm = nn.LayerNorm(config.dim)

    def forward(
        self, w: Tensor, r: Tensor, u: Tensor, v: Tensor, mask: Tensor, mems: Tensor
    ) -> Tensor:
        """As `PeerAttention`."""
        out = self.dec_attn(w, r, u, v, mask, mems)
        return self.layer_norm(out + self.core_net(out))


class PeerModel(nn.Module):
    """The language model; the loss of a segment and the memories after it."""

    def __init__(self, config: TransformerXLConfig, places: int) -> None:
        """Of the sizes of a config, with a plain softmax."""
        super().__init__()
        self.config, self.places = config, places
        self.word_emb = nn.Embedding(config.vocab_size, config.dim)
        self.out_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.r_w_bias = nn.Parameter(torch.zeros(config.heads, config.head_dim))
        self.r_r_bias = nn.Parameter(torch.zeros(config.heads, config.head_dim))
        self.layers = nn.ModuleList(PeerBlock(config) for _ in range(config.layers))
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self, data: Tensor, target: Tensor, mems: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses of all tokens (n, b), and the new memories."""
        qlen, bsz = data.shape
        if mems is None:
            empty = self.word_emb.weight.new_empty(0, bsz, self.config.dim)
            mems = [empty] * self.config.layers
        mlen = len(mems[0])
        core = self.drop(self.word_emb(data) * self.config.dim**0.5)
        seen = core.new_ones(qlen, mlen + qlen)
        mask = torch.triu(seen, diagonal=1 + mlen).bool()
        r = self.drop(self._positions(mlen + qlen, core))
        hids: list[Tensor] = []
        for layer, block in enumerate(self.layers):
            hids.append(core)
            core = block(core, r, self.r_w_bias, self.r_r_bias, mask, mems[layer])
        with torch.no_grad():
            new = [
                torch.cat([old, hid], 0)[-self.places :].detach()
                for old, hid in zip(mems, hids, strict=True)
            ]
        logit = functional.linear(self.drop(core), self.word_emb.weight, self.out_bias)
        logit = logit.to(torch.promote_types(logit.dtype, torch.float32)).flatten(0, 1)
        flat = functional.cross_entropy(logit, target.flatten(), reduction="none")
        return flat.view(qlen, bsz), new

    def _positions(self, klen: int, like: Tensor) -> Tensor:
        wide = torch.promote_types(like.dtype, torch.float32)
        place = torch.arange(klen - 1, -1, -1, device=like.device, dtype=wide)
        even = torch.arange(0, self.config.dim, 2, device=like.device, dtype=wide)
        angle = torch.outer(place, 1 / (10000 ** (even / self.config.dim)))
        return torch.cat([angle.sin(), angle.cos()], -1)[:, None].to(like.dtype)


@torch.no_grad()
def copy_weights(ours: TransformerXLModel, peer: PeerModel) -> None:
    """Give the peer the weights of our stack."""
    own = dict(ours.named_parameters())
    peer.word_emb.weight.copy_(own["words.table"])
    peer.out_bias.copy_(own["words.word_bias"])
    peer.r_w_bias.copy_(own["content_bias"])
    peer.r_r_bias.copy_(own["position_bias"])
    theirs = dict(peer.named_parameters())
    names = {
        "dec_attn.r_net.weight": "attention.position.weight",
        "dec_attn.o_net.weight": "attention.out.weight",
        "dec_attn.layer_norm": "attention_norm",
        "core_net.0": "first",
        "core_net.3": "second",
        "layer_norm": "norm",
    }
    for layer in range(ours.config.layers):
        begins = f"layers.{layer}."
        parts = ("query", "key_value")
        joined: list[Tensor] = [
            own[f"blocks.{layer}.attention.{part}.weight"] for part in parts
        ]
        theirs[f"{begins}dec_attn.qkv_net.weight"].copy_(torch.cat(joined))
        for name, parameter in theirs.items():
            for old, new in names.items():
                if name.startswith(begins + old):
                    known = name.replace(begins + old, f"blocks.{layer}.{new}")
                    parameter.copy_(own[known])


def _rel_shift(x: Tensor) -> Tensor:
    zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
    x_padded = torch.cat([zero_pad, x], dim=1)
    x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
    return x_padded[1:].view_as(x)
