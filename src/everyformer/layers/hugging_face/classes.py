"""The attention classes of transformers that are known: one line for each.

A class that calls the attention function of the registry needs nothing but its name here.
Others have a class of ours that goes before them (`swapping`), or functions that change a
model from outside.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from everyformer.layers.hugging_face import alibi, deberta, t5
from everyformer.layers.hugging_face.swapping import (
    Swapped,
    forward_is_its_own,
    original,
)


def _nothing(module: nn.Module) -> str | None:
    return None


@dataclass(frozen=True)
class Known:
    """What is done with a class.

    Attributes:
        bias: What the model adds to its logits, for the table in the docs.
        ours: The class that goes before it; None if the registry's function is enough.
        why_not: What stands against it, for a module; None if nothing does.
        adapt: For classes that are changed from outside: changes those of a whole model.
        undo: The other way round.
    """

    bias: str = "none"
    ours: type[Swapped] | None = None
    why_not: Callable[[nn.Module], str | None] = _nothing
    adapt: Callable[[nn.Module], None] | None = None
    undo: Callable[[nn.Module], None] | None = None


_T5 = Known("by offset, in buckets, learnt", t5.T5Bias, t5.why_not)

_DEBERTA = Known("content and position", adapt=deberta.adapt, undo=deberta.restore)

CLASSES: dict[str, Known] = {
    "t5.modeling_t5.T5Attention": _T5,
    "mt5.modeling_mt5.MT5Attention": _T5,
    "umt5.modeling_umt5.UMT5Attention": _T5,
    "bloom.modeling_bloom.BloomAttention": Known("ALiBi", alibi.Bloom, alibi.bloom_why_not),
    "mpt.modeling_mpt.MptAttention": Known("ALiBi", alibi.Mpt, alibi.mpt_why_not),
    "falcon.modeling_falcon.FalconAttention": Known(
        "ALiBi, rounded, or rotations", alibi.Falcon, alibi.falcon_why_not
    ),
    "deberta.modeling_deberta.DisentangledSelfAttention": _DEBERTA,
    "deberta_v2.modeling_deberta_v2.DisentangledSelfAttention": _DEBERTA,
    "bert.modeling_bert.BertSelfAttention": Known(),
    "bert.modeling_bert.BertCrossAttention": Known(),
    "roberta.modeling_roberta.RobertaSelfAttention": Known(),
    "roberta.modeling_roberta.RobertaCrossAttention": Known(),
    "xlm_roberta.modeling_xlm_roberta.XLMRobertaSelfAttention": Known(),
    "xlm_roberta.modeling_xlm_roberta.XLMRobertaCrossAttention": Known(),
    "gpt2.modeling_gpt2.GPT2Attention": Known(),
    "llama.modeling_llama.LlamaAttention": Known("rotations"),
    "mistral.modeling_mistral.MistralAttention": Known("rotations"),
    "qwen2.modeling_qwen2.Qwen2Attention": Known("rotations"),
}
"""By the place of the class under `transformers.models`."""

ROOT = "transformers.models."


def place(module: nn.Module) -> str:
    """Where the class of a module is defined, as `CLASSES` names it."""
    return _place(original(module))


def _place(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix(ROOT)


def attention_of(model: nn.Module) -> Iterator[tuple[nn.Module, Known]]:
    """Each attention module of a model that is known, with what is done with it."""
    for module in model.modules():
        known = CLASSES.get(place(module))
        if known is not None:
            yield module, known


def strangers(model: nn.Module) -> list[str]:
    """Names of the attention classes in a model that are not known.

    Those made of a class that is known are others, too, whatever they are called.
    """
    found: set[str] = set()
    for module in model.modules():
        kind = original(module)
        if place(module) in CLASSES:
            continue
        made_of = any(_place(base) in CLASSES for base in kind.__mro__)
        if made_of or ("Attention" in kind.__name__ and not _holds_known(module)):
            found.add(kind.__name__)
    return sorted(found)


def _holds_known(module: nn.Module) -> bool:
    return any(place(part) in CLASSES for part in module.modules())


def why_not(model: nn.Module) -> str | None:
    """What stands against our function in a model."""
    unknown = strangers(model)
    if unknown:
        return f"it has {', '.join(unknown)}; known are {', '.join(names())}"
    for module, known in attention_of(model):
        reason = known.why_not(module) or why_replaced(module)
        if reason:
            return reason
    return None


def why_replaced(module: nn.Module) -> str | None:
    """What stands against a module whose forward was put there by somebody else."""
    if forward_is_its_own(module):
        return None
    name = original(module).__name__
    return (
        f"the forward of its {name} was replaced by another function, of which nothing is "
        "known. Give the class its own one back"
    )


def names() -> list[str]:
    """The names of the classes that are known."""
    return sorted({known.rpartition(".")[2] for known in CLASSES})
