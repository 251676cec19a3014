"""The models of transformers on which everyformer's operator is tested: one line for each.

Random weights, two layers, few tokens in the vocabulary; `real` has the head size, the
heads and the buckets of the model named (fewer heads where the width must be their
product: 4,096 for MPT, 2,048 for Falcon), `small` has two or four heads of size 16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

V, N, B = 97, 13, 2
"""Vocabulary, tokens, sequences."""

PAD = 0


@dataclass(frozen=True)
class Case:
    """A model under test.

    Attributes:
        make: The model of `library`, with `heads` heads of `size`.
        like: Whose heads, size and buckets `real` has.
        heads: Of the real model.
        size: Of a head of the real model.
        generates: Whether it makes text.
        static: Whether transformers gives it a cache of fixed size.
        lora: The modules that LoRA is put on.
        weights: Whether transformers itself gives correct attention weights (it adds the
            ALiBi of Falcon twice).
        dtype: In which it makes text; some of transformers make NaN in float64.
    """

    make: Callable[[Any, int, int], nn.Module]
    like: str
    heads: int
    size: int
    generates: bool = True
    static: bool = True
    lora: tuple[str, ...] = ("query_key_value",)
    weights: bool = True
    dtype: torch.dtype = torch.float64


def t5(library: Any, kind: str, heads: int, size: int) -> nn.Module:
    config = getattr(library, f"{kind}Config")(
        vocab_size=V, d_model=48, d_kv=size, d_ff=64, num_layers=2, num_decoder_layers=2,
        num_heads=heads, dropout_rate=0.0, pad_token_id=PAD, eos_token_id=None,
        decoder_start_token_id=1, tie_word_embeddings=kind == "T5",
    )  # fmt: skip
    return getattr(library, f"{kind}ForConditionalGeneration")(config)


def bloom(library: Any, heads: int, size: int) -> nn.Module:
    config = library.BloomConfig(
        vocab_size=V, hidden_size=heads * size, n_layer=2, n_head=heads, hidden_dropout=0.0,
        attention_dropout=0.0, pad_token_id=PAD, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return library.BloomForCausalLM(config)


def mpt(library: Any, heads: int, size: int) -> nn.Module:
    config = library.MptConfig(
        vocab_size=V, d_model=heads * size, n_heads=heads, n_layers=2, max_seq_len=1024,
        pad_token_id=PAD, eos_token_id=None,
    )  # fmt: skip
    return library.MptForCausalLM(config)


def falcon(library: Any, heads: int, size: int, **settings: Any) -> nn.Module:
    config = library.FalconConfig(
        vocab_size=V, hidden_size=heads * size, num_attention_heads=heads,
        num_hidden_layers=2, hidden_dropout=0.0, attention_dropout=0.0, pad_token_id=PAD,
        bos_token_id=1, eos_token_id=None, **settings,
    )  # fmt: skip
    return library.FalconForCausalLM(config)


def falcon_rw(library: Any, heads: int, size: int) -> nn.Module:
    settings = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
    return falcon(library, heads, size, **settings)


def bert(library: Any, kind: str, heads: int, size: int) -> nn.Module:
    config = getattr(library, f"{kind}Config")(
        vocab_size=V, hidden_size=heads * size, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=heads, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=1024, pad_token_id=PAD,
    )  # fmt: skip
    return getattr(library, f"{kind}ForMaskedLM")(config)


def gpt2(library: Any, heads: int, size: int) -> nn.Module:
    config = library.GPT2Config(
        vocab_size=V, n_embd=heads * size, n_layer=2, n_head=heads, n_positions=1024,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=None,
        pad_token_id=PAD,
    )  # fmt: skip
    return library.GPT2LMHeadModel(config)


def deberta(library: Any, kind: str, heads: int, size: int) -> nn.Module:
    config = getattr(library, f"{kind}Config")(
        vocab_size=V, hidden_size=heads * size, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=heads, hidden_dropout_prob=0.0, type_vocab_size=0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=512, pad_token_id=PAD,
        relative_attention=True, position_biased_input=False, pos_att_type=["p2c", "c2p"],
        **({"position_buckets": 256, "share_att_key": True} if kind != "Deberta" else {}),
    )  # fmt: skip
    return getattr(library, f"{kind}ForMaskedLM")(config)


def llama(library: Any, kind: str, heads: int, size: int, **settings: Any) -> nn.Module:
    config = getattr(library, f"{kind}Config")(
        vocab_size=V, hidden_size=64, head_dim=size, num_attention_heads=heads,
        num_key_value_heads=heads // 4, intermediate_size=64, num_hidden_layers=2,
        eos_token_id=None, pad_token_id=PAD, **settings,
    )  # fmt: skip
    return getattr(library, f"{kind}ForCausalLM")(config)


def _with(
    make: Callable[..., nn.Module], kind: str
) -> Callable[[Any, int, int], nn.Module]:
    return lambda library, heads, size: make(library, kind, heads, size)


QV, ATTENTION = ("q", "v"), ("query", "value")

CASES: dict[str, Case] = {
    "T5": Case(_with(t5, "T5"), "t5-base", 12, 64, lora=QV),
    "MT5": Case(_with(t5, "MT5"), "mt5-base", 12, 64, lora=QV),
    "UMT5": Case(_with(t5, "UMT5"), "umt5-base", 12, 64, lora=QV),
    "Bloom": Case(bloom, "bloom-560m", 16, 64, dtype=torch.float32),
    "Mpt": Case(
        mpt, "mpt-7b", 6, 128, static=False, lora=("Wqkv",), dtype=torch.float32
    ),
    "FalconRW": Case(falcon_rw, "falcon-rw-1b", 12, 64, static=False, weights=False),
    "Falcon": Case(falcon, "falcon-7b", 12, 64, static=False),
    "Deberta": Case(
        _with(deberta, "Deberta"), "deberta-base", 12, 64, generates=False,
        lora=("in_proj",),
    ),
    "DebertaV2": Case(
        _with(deberta, "DebertaV2"), "deberta-v3-base", 12, 64, generates=False,
        lora=("query_proj",),
    ),
    "Bert": Case(_with(bert, "Bert"), "bert-base", 12, 64, generates=False, lora=ATTENTION),
    "Roberta": Case(
        _with(bert, "Roberta"), "roberta-base", 12, 64, generates=False, lora=ATTENTION
    ),
    "XLMRoberta": Case(
        _with(bert, "XLMRoberta"), "xlm-roberta-base", 12, 64, generates=False,
        lora=ATTENTION,
    ),
    "GPT2": Case(gpt2, "gpt2", 12, 64, lora=("c_attn",)),
    "Llama": Case(_with(llama, "Llama"), "Llama-3-8B", 32, 128, lora=("q_proj",)),
    "Mistral": Case(_with(llama, "Mistral"), "Mistral-7B", 32, 128, lora=("q_proj",)),
    "Qwen2": Case(_with(llama, "Qwen2"), "Qwen2-7B", 28, 128, lora=("q_proj",)),
}  # fmt: skip


def real(name: str, library: Any) -> Any:
    """With the heads of the real model."""
    torch.manual_seed(0)
    case = CASES[name]
    return scattered(case.make(library, case.heads, case.size))


def small(name: str, library: Any) -> Any:
    """With few small heads."""
    torch.manual_seed(0)
    return scattered(CASES[name].make(library, 4, 16))


def scattered(model: Any) -> Any:
    """Weights off their beginnings: no zero biases, no norms of one."""
    generator = torch.Generator().manual_seed(7)
    for part in model.parameters():
        noise = torch.randn(part.shape, generator=generator)
        size = 0.3 if part.dim() == 1 or part.shape[0] <= 32 else 0.05
        part.data.add_(size * noise)
    return model.eval()


IDS = torch.randint(2, V, (B, N), generator=torch.Generator().manual_seed(1))


def paddings() -> dict[str, Tensor | None]:
    """Which tokens count: all, or some are padded, on either side or among the others."""
    ones = torch.ones(B, N, dtype=torch.long)
    found: dict[str, Tensor | None] = {"nothing": None}
    for name, where in (("right", slice(9, N)), ("left", slice(0, 4)), ("holes", [3, 7])):
        seen = ones.clone()
        seen[1, where] = 0
        found[name] = seen
    return found


def inputs(model: Any, seen: Tensor | None = None, ids: Tensor = IDS) -> dict[str, Any]:
    """Those of a forward pass."""
    given: dict[str, Any] = {"input_ids": ids}
    if seen is not None:
        given["attention_mask"] = seen
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids.flip(1)
    return given


def results(model: Any, seen: Tensor | None = None, **more: Any) -> tuple[Tensor, Any]:
    """Logits of the tokens that count, and the gradients of all parameters."""
    model.zero_grad()
    logits = model(**inputs(model, seen), **more).logits
    if seen is not None and not model.config.is_encoder_decoder:
        logits = logits[seen.bool()]
    logits.float().square().mean().backward()
    return logits.detach(), {
        name: part.grad for name, part in model.named_parameters() if part.grad is not None
    }
