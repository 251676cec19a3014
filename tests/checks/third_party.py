"""Modules that other people wrote: of torch, of Hugging Face, or in the style of others.

`python -m tests.checks.third_party` writes docs/third_party.md of the rows below, whose
verdicts the tests compare with what `check` says. All are built from configs, with few
numbers; sequences are given as inputs_embeds, or in place of an embedding.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Layer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.t5.modeling_t5 import T5Block
from transformers.models.vit.modeling_vit import ViTLayer

F = nn.functional
N, D = 7, 8
PAGE = Path(__file__).parents[2] / "docs" / "third_party.md"
WORDS = {"P": "PROVED", "R": "REFUTED", "U": "UNKNOWN"}
CODES = ("EF001", "EF003", "EF006", "EF007")

SIZES: dict[str, Any] = {
    "hidden_size": D,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "vocab_size": 11,
    "max_position_embeddings": N + 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT: dict[str, Any] = {
    "n_embd": D,
    "n_head": 2,
    "n_layer": 1,
    "vocab_size": 11,
    "n_positions": N + 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5: dict[str, Any] = {"d_model": D, "d_kv": 4, "num_heads": 2, "d_ff": 16, "num_layers": 1}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 1, "head_dim": 4}


def config(name: str, **settings: Any) -> Any:
    """A config of Hugging Face; its type does not name all that it takes."""
    return getattr(transformers, f"{name}Config")(**settings)


def model(
    name: str, attention: str | None = "sdpa", kind: str = "Model", **settings: Any
) -> Callable[[], nn.Module]:
    """A model of Hugging Face with random weights."""

    def make() -> nn.Module:
        made: Any = getattr(transformers, f"{name}{kind}")
        given = config(name, **settings)
        if attention is None:
            return made(given)
        return made._from_config(given, attn_implementation=attention)

    return make


class Deberta(nn.Module):
    """A layer of DeBERTa-v2 with its table of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        relative = {"relative_attention": True, "position_buckets": 4}
        more = {"max_relative_positions": 16, "pos_att_type": ["c2p", "p2c"]}
        self.layer = DebertaV2Layer(config("DebertaV2", **SIZES, **relative, **more))
        self.table = nn.Embedding(8, D)

    def forward(self, x: Tensor) -> Tensor:
        everyone = torch.ones(x.shape[0], 1, N, N, dtype=torch.bool)
        return self.layer(x, everyone, rel_embeddings=self.table.weight)[0]


class InBlocks(nn.Module):
    """PyTorch's attention with a mask of the user's: blocks of three tokens."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        block = torch.arange(N) // 3
        apart = block[:, None] != block[None]
        if self.shift:
            apart = apart & (block[:, None] != block[None].roll(self.shift))
        return x + self.attention(x, x, x, attn_mask=apart, need_weights=False)[0]


class Decoder(nn.Module):
    """PyTorch's decoder layer without a memory, as language models use it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(D, 2, 16, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(N))

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.zeros(x.shape[0], 1, D, dtype=x.dtype)
        return self.layer(x, memory, tgt_mask=self.mask.to(x.dtype))


class NanoBlock(nn.Module):
    """A block in the style of nanoGPT: the mask is a buffer of zeros and ones."""

    mask: Tensor

    def __init__(self, fill: float = -torch.inf) -> None:
        super().__init__()
        self.fill = fill
        self.norm, self.last = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 16), nn.GELU(), nn.Linear(16, D))
        ones = torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16)
        self.register_buffer("mask", ones, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        parts = self.qkv(self.norm(x)).split(D, dim=2)
        q, k, v = (part.view(b, n, 2, D // 2).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-2, -1)) * (D // 2) ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :n, :n] == 0, self.fill)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, n, D)
        x = x + self.out(mixed)
        return x + self.mlp(self.last(x))


class NanoGPT(nn.Module):
    """A model of token ids in the style of nanoGPT, which returns (logits, loss)."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, D), nn.Embedding(N, D)
        self.block, self.norm = NanoBlock(), nn.LayerNorm(D)
        self.head = nn.Linear(D, D, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, None]:
        places = torch.arange(ids.shape[1])
        return self.head(self.norm(self.block(self.wte(ids) + self.wpe(places)))), None


class VisionBlock(nn.Module):
    """A block in the style of timm: fused projections and a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
        self.scale = nn.Parameter(torch.full((D,), 0.1))
        self.mlp = nn.Sequential(nn.Linear(D, 16), nn.GELU(), nn.Linear(16, D))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        parts = self.qkv(self.norm(x)).reshape(b, n, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, D)
        x = x + self.scale * self.out(mixed)
        return x + self.scale * self.mlp(self.last(x))


class MixerBlock(nn.Module):
    """A block of MLP-Mixer: a free matrix of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = (
            nn.LayerNorm(D),
            nn.Linear(N, N),
            nn.Linear(D, D),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(F.gelu(self.norm(x).mT)).mT
        return x + self.channels(F.gelu(self.norm(x)))


class Convolutional(nn.Module):
    """Convolutions padded on both sides, or, as WaveNet has them, on the left alone."""

    def __init__(self, taps: int, *, causal: bool) -> None:
        super().__init__()
        self.before = (taps - 1) if causal else (taps - 1) // 2
        self.after = 0 if causal else taps - 1 - self.before
        self.first, self.second = nn.Conv1d(D, 16, taps), nn.Conv1d(16, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (self.before, self.after))
        return x + self.second(self.first(padded).relu()).transpose(1, 2)


class LinearAttention(nn.Module):
    """Attention without a softmax: sums of k v^T, over all tokens or up to here."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        pairs = k[..., :, None] * self.v(x)[..., None, :]
        state = pairs.cumsum(1) if self.causal else pairs.sum(1, keepdim=True)
        return x + (q[..., :, None] * state).sum(-2)


class Rotary(nn.Module):
    """Attention in the style of x-transformers: RMSNorm, rotary, grouped heads, SwiGLU."""

    angles: Tensor

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm, self.last = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)
        self.q, self.kv = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.gate, self.up, self.down = nn.Linear(D, 16), nn.Linear(D, 16), nn.Linear(16, D)
        self.register_buffer("angles", torch.outer(torch.arange(16.0), torch.ones(1)))

    def turned(self, x: Tensor) -> Tensor:
        angles = self.angles[: x.shape[-2]]
        a, b = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = self.norm(x)
        q = self.q(y).view(b, n, 4, 2).transpose(1, 2)
        k, v = self.kv(y).view(b, n, 2, 4).transpose(1, 2).split(2, -1)
        mixed = F.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=self.causal, enable_gqa=True
        )
        x = x + mixed.transpose(1, 2).reshape(b, n, D)
        y = self.last(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class FirstOf(nn.Module):
    """An encoder of torch with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return {"last_hidden_state": self.encoder(x, mask=mask, is_causal=True)}


@dataclass(frozen=True)
class Row:
    """A module, what `check` says of it, and why.

    Attributes:
        make: Makes it.
        verdicts: Letters of the verdicts: universal in L^p, in the sup norm, and those of
            the rules `CODES`.
        why: In a sentence.
        settings: More arguments of `check`.
    """

    make: Callable[[], nn.Module]
    verdicts: str
    why: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def decided(self) -> bool:
        """Whether universality is PROVED or REFUTED in one of the distances."""
        return self.verdicts[:2] != "UU"


PERMUTED = "Nothing tells positions apart: permutations of the tokens commute with it."
EQUAL = "Rows of the softmax sum to 1: equal tokens stay equal, which refutes the sup norm."
LATER = "No token hears a later one."
FINITE = "Its mask is finite, so later tokens keep a weight; with -inf it would be refuted."
FINITE_EQUAL = "Its mask is finite, so L^p stays open; equal tokens stay equal."
OPEN = "Positions are added to the tokens, and no obstacle is left; no theorem is at hand."

ROWS: dict[str, Row] = {
    "torch MultiheadAttention": Row(
        lambda: nn.MultiheadAttention(D, 2, batch_first=True), "RRPPRR", PERMUTED
    ),
    "torch MultiheadAttention, batch second, no biases": Row(
        lambda: nn.MultiheadAttention(D, 2, bias=False), "RRPPRP", PERMUTED
    ),
    "torch TransformerEncoderLayer": Row(
        lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), "RRPPRR", PERMUTED
    ),
    "torch TransformerEncoder, causal, in a dict": Row(FirstOf, "RRRPPR", LATER),
    "torch TransformerDecoderLayer, mask in a buffer": Row(Decoder, "RRRPPR", LATER),
    "torch MultiheadAttention in blocks": Row(
        InBlocks, "RRRPRR", "A mask cuts the sequence: tokens of two blocks never meet."
    ),
    "torch MultiheadAttention in overlapping blocks": Row(
        lambda: InBlocks(shift=1), "URRPRR", EQUAL
    ),
    "torch LSTM": Row(lambda: nn.LSTM(D, D, batch_first=True), "RRRRPR", LATER),
    "nanoGPT block": Row(NanoBlock, "RRRPPR", LATER),
    "nanoGPT block, filled with -1e9": Row(lambda: NanoBlock(-1e9), "URRPUR", FINITE_EQUAL),
    "nanoGPT of token ids": Row(NanoGPT, "RRRRPR", LATER, {"embedding": "wte"}),
    "timm block": Row(VisionBlock, "RRPPRR", PERMUTED),
    "MLP-Mixer block": Row(
        MixerBlock, "UURRRR", "Its matrix over positions is free; `check` does not see it."
    ),
    "convolutions, padded on both sides": Row(
        lambda: Convolutional(3, causal=False),
        "UURRRR",
        "All tokens meet in a stack, and the ends are told apart; no theorem is at hand.",
    ),
    "convolutions, padded on the left": Row(
        lambda: Convolutional(3, causal=True), "RRRRPR", LATER
    ),
    "convolutions of one tap": Row(
        lambda: Convolutional(1, causal=True), "RRPPPR", "No token hears any other."
    ),
    "linear attention": Row(lambda: LinearAttention(causal=False), "RRPPRR", PERMUTED),
    "linear attention, sums up to here": Row(
        lambda: LinearAttention(causal=True), "RRRRPR", LATER
    ),
    "x-transformers block, rotary": Row(lambda: Rotary(causal=False), "URRPRR", EQUAL),
    "x-transformers block, rotary, causal": Row(
        lambda: Rotary(causal=True), "RRRPPR", LATER
    ),
    "BERT layer": Row(
        lambda: BertLayer(config("Bert", **SIZES, attn_implementation="sdpa")),
        "RRPPRR",
        PERMUTED,
    ),
    "BERT": Row(model("Bert", **SIZES), "UURRRR", OPEN),
    "RoBERTa": Row(model("Roberta", **SIZES), "UURRRR", OPEN),
    "ALBERT": Row(model("Albert", **SIZES, embedding_size=D), "UURRRR", OPEN),
    "ELECTRA": Row(model("Electra", **SIZES, embedding_size=D), "UURRRR", OPEN),
    "DistilBERT": Row(
        model(
            "DistilBert",
            dim=D,
            n_heads=2,
            n_layers=1,
            hidden_dim=16,
            vocab_size=11,
            max_position_embeddings=N + 2,
        ),
        "UURRRR",
        OPEN,
    ),
    "ViT layer": Row(
        lambda: ViTLayer(config("ViT", **SIZES, attn_implementation="sdpa")),
        "RRPPRR",
        PERMUTED,
    ),
    "DeBERTa-v2 layer": Row(Deberta, "URRPRR", EQUAL),
    "T5 block": Row(
        lambda: T5Block(
            config("T5", **T5, attn_implementation="eager"),
            has_relative_attention_bias=True,
        ),
        "URRPRP",
        EQUAL,
    ),
    "T5 encoder": Row(
        model("T5", None, "EncoderModel", **T5, vocab_size=11), "URRPRP", EQUAL
    ),
    "GPT-2 block": Row(
        lambda: GPT2Block(config("GPT2", **GPT, attn_implementation="sdpa")),
        "RRRPPR",
        LATER,
    ),
    "GPT-2": Row(model("GPT2", **GPT), "RRRRPR", LATER),
    "GPT-2, eager": Row(model("GPT2", "eager", **GPT), "UURRUR", FINITE),
    "GPT-2 with its head, .logits": Row(
        model("GPT2", "sdpa", "LMHeadModel", **GPT), "RRRRPR", LATER
    ),
    "GPT-J": Row(model("GPTJ", "eager", **GPT, rotary_dim=2), "URRPUR", FINITE_EQUAL),
    "GPT-NeoX": Row(model("GPTNeoX", **SIZES), "RRRPPR", LATER),
    "GPT, the first": Row(model("OpenAIGPT", None, **GPT), "UURRUR", FINITE),
    "OPT": Row(model("OPT", **SIZES, ffn_dim=16, word_embed_proj_dim=D), "RRRRPR", LATER),
    "BLOOM": Row(
        model("Bloom", None, hidden_size=D, n_head=2, n_layer=1, vocab_size=11),
        "URRPUR",
        FINITE_EQUAL,
    ),
    "MPT": Row(
        model("Mpt", None, d_model=D, n_heads=2, n_layers=1, vocab_size=11, max_seq_len=8),
        "URRPUP",
        FINITE_EQUAL,
    ),
    "Falcon": Row(model("Falcon", **SIZES), "RRRPPR", LATER),
    "Llama": Row(model("Llama", **GROUPED), "RRRPPP", LATER),
    "Mistral, sliding window": Row(
        model("Mistral", **GROUPED, sliding_window=3), "RRRPPP", LATER
    ),
    "Qwen2": Row(model("Qwen2", **GROUPED), "RRRPPR", LATER),
    "Gemma": Row(model("Gemma", **GROUPED), "RRRPPP", LATER),
    "Phi": Row(model("Phi", **SIZES), "RRRPPR", LATER),
    "Mamba": Row(
        model(
            "Mamba", None, hidden_size=D, state_size=2, num_hidden_layers=1, vocab_size=11
        ),
        "RRRRPU",
        LATER,
    ),
}


def page() -> str:
    """docs/third_party.md."""
    decided = sum(row.decided for row in ROWS.values())
    lines = [
        "# Models people have",
        "",
        "Can stacks of this layer, or of this model, approximate every continuous function",
        "of sequences of vectors? The columns L^p (error in the mean) and sup norm",
        "(largest error) say what `check` answers for modules of torch and Hugging Face,",
        "and for some in the style of other libraries, with",
        f"n = {N} tokens of d = {D} numbers and random weights. REFUTED is a proof",
        "that they cannot, whatever the weights; UNKNOWN means that neither was proved.",
        "The next four columns are the",
        "[rules](rules.md) EF001, EF003, EF006 and EF007. REFUTED is not a verdict on how",
        "useful a model is: a causal model is made not to look ahead.",
        "",
        f"{decided} of {len(ROWS)} are decided in one distance at least. The page is made",
        "by `python -m tests.checks.third_party`, and the tests compare it with `check`.",
        "",
        "Models of token ids are judged as maps of sequences of vectors, which they get as",
        "`inputs_embeds`, or in place of what their embedding gives",
        '(`check(..., embedding="wte")`). So a verdict is about the model as a function of',
        "any vectors, not of the finitely many rows of its table. Of the outputs,",
        "`last_hidden_state` is judged, else `logits`, else the first tensor.",
        "",
        "| module | L^p | sup norm | permutations commute | equal tokens stay equal "
        "| causal | zero to zero | why |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        told = " | ".join(WORDS[letter] for letter in row.verdicts)
        lines.append(f"| {name} | {told} | {row.why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
