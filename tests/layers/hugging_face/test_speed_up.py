"""`speed_up` and the registry: O(n) memory, half precision, several models."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.layers.hugging_face.models import (
    CASES,
    IDS,
    falcon,
    inputs,
    paddings,
    results,
    scattered,
    small,
)
from tests.layers.hugging_face.paths import spied
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import everyformer
from everyformer.errors import InputError
from everyformer.layers.hugging_face import switch
from everyformer.ops.toeplitz_attention import chunked


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers")


class Largest(TorchDispatchMode):
    """The largest tensor that any operation gives."""

    numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found: Any = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, tuple | list) else (found,):
            if isinstance(x, Tensor):
                held = x.untyped_storage().nbytes() // x.element_size()
                self.numel = max(self.numel, min(held, x.numel()))
        return found


@pytest.mark.parametrize("name", [n for n in CASES if "eberta" not in n])
def test_memory_is_linear_in_the_tokens(
    name: str, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tensor of n n numbers, forward or backward, also with padding."""
    monkeypatch.setattr(chunked, "STEP_ENTRIES", 1)  # 128 rows of one head at a time
    n = 320
    model = small(name, library)
    ids = IDS[:1].repeat(1, 40)[:, :n]
    seen = torch.ones(1, n, dtype=torch.long)
    seen[0, :40] = 0
    everyformer.speed_up(model)
    with Largest() as largest:
        model(**inputs(model, seen, ids), use_cache=False).logits.sum().backward()
    own = 4 * n * model.config.hidden_size  # what feed-forward layers hold
    assert largest.numel < max(n * n, own + 1)
    if name in ("T5", "Bloom"):
        everyformer.restore(model)
        with Largest() as theirs:
            model(**inputs(model, seen, ids), use_cache=False).logits.sum().backward()
        assert theirs.numel >= 4 * n * n


def test_a_cache_and_a_mask_by_the_operator(library: Any) -> None:
    """Decoding with padding, and several tokens on a cache: still no n x n."""
    for name in ("T5", "Bloom", "GPT2", "Llama"):
        model = small(name, library)
        everyformer.speed_up(model)
        seen: Any = paddings()["left"]
        with spied() as ways:
            model.generate(IDS, attention_mask=seen, max_new_tokens=3, do_sample=False)
            if not model.config.is_encoder_decoder:
                start = model(IDS[:, :5], attention_mask=seen[:, :5], use_cache=True)
                model(IDS[:, 5:], attention_mask=seen, past_key_values=start[1])
        assert set(ways) == {"toeplitz_attention"}


def test_a_chunk_of_tokens_on_a_cache(library: Any) -> None:
    for name in ("Bloom", "Mpt", "FalconRW", "GPT2", "Llama"):
        model = small(name, library).double()
        everyformer.speed_up(model)
        for seen in (None, paddings()["left"], paddings()["holes"]):
            part = None if seen is None else seen[:, :8]
            whole = model(IDS, attention_mask=seen).logits
            start = model(IDS[:, :8], attention_mask=part, use_cache=True)
            rest = model(IDS[:, 8:], attention_mask=seen, past_key_values=start[1])
            assert (rest.logits - whole[:, 8:]).abs().max() < 1e-5 * whole.abs().max()


@pytest.mark.parametrize(
    "settings",
    [
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 4, "alibi": True},
        {"multi_query": True, "alibi": True},
        {"multi_query": False},
    ],
)
def test_heads_of_every_falcon(settings: dict[str, Any], library: Any) -> None:
    """Groups of heads with a key of their own, one key for all, or one for each."""
    torch.manual_seed(0)
    model: Any = falcon(library, heads=4, size=16, **settings).eval()
    seen = (torch.arange(IDS.shape[1]) >= torch.tensor([[0], [2]])).long()
    expected = model(IDS, attention_mask=seen).logits[seen.bool()]
    everyformer.speed_up(model)
    found = model(IDS, attention_mask=seen).logits[seen.bool()]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["T5", "FalconRW", "GPT2", "Bert", "Llama"])
def test_gradients_of_each_sample(name: str, library: Any) -> None:
    """By `torch.func.vmap`, under which nobody may look at the numbers of a mask."""
    model = small(name, library)
    everyformer.speed_up(model)
    parts = {key: part.detach() for key, part in model.named_parameters()}

    def loss(parts: dict[str, Tensor], ids: Tensor) -> Tensor:
        given = inputs(model, torch.ones_like(ids), ids)
        return torch.func.functional_call(model, parts, (), given)[0].square().mean()

    gradients = torch.func.grad(loss)
    found = torch.func.vmap(gradients, (None, 0))(parts, IDS[:, None])
    for k in range(len(IDS)):
        for key, alone in gradients(parts, IDS[k : k + 1]).items():
            assert (found[key][k] - alone).norm() < 1e-5 * (alone.norm() + 1e-3), key


def test_dropout_is_that_of_the_operator(library: Any) -> None:
    """Weights are dropped in training, none in evaluation; the mean stays."""
    config = library.BertConfig(
        vocab_size=97, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5,
    )  # fmt: skip
    model = scattered(library.BertModel(config))
    everyformer.speed_up(model)
    exact = model(IDS)[0]
    assert torch.equal(model(IDS)[0], exact)
    model.train()
    with spied() as ways, torch.no_grad():
        first, second = model(IDS)[0], model(IDS)[0]
    assert (first - second).abs().max() > 1e-3
    assert ways == ["toeplitz_attention"] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, library: Any) -> None:
    """As near to the model in float32 as transformers is."""
    for name in ("T5", "UMT5", "Bloom", "Mpt", "GPT2", "Bert", "DebertaV2"):
        model = small(name, library)
        exact = results(model, paddings()["right"])[0]
        half = copy.deepcopy(model).to(dtype)
        theirs = results(half, paddings()["right"])[0].float()
        everyformer.speed_up(half)
        ours = results(half, paddings()["right"])[0]
        assert ours.dtype == dtype
        off = (ours.float() - exact).norm() / exact.norm()
        assert off < 1.5 * (theirs - exact).norm() / exact.norm() + 1e-3, name


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta", "GPT2"])
def test_cross_attention(kind: str, library: Any) -> None:
    """As a decoder beside another sequence, some of which is padded."""
    config = getattr(library, f"{kind}Config")(
        vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        is_decoder=True, add_cross_attention=True, max_position_embeddings=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0,
    )  # fmt: skip
    model = scattered(getattr(library, f"{kind}Model")(config))
    other = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(2))
    seen = torch.ones(2, 9, dtype=torch.long)
    seen[0, 5:] = 0
    more = {"encoder_hidden_states": other, "encoder_attention_mask": seen}
    theirs = model(IDS, **more)[0]
    everyformer.speed_up(model)
    with spied() as ways:
        ours = model(IDS, **more)[0]
    assert ways == ["toeplitz_attention"] * 4
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    start = model(IDS[:, :6], use_cache=True, **more)
    rest = model(IDS[:, 6:], past_key_values=start.past_key_values, **more)[0]
    assert (rest - theirs[:, 6:]).abs().max() < 1e-5 * theirs.abs().max()


def test_models_of_one_configuration_stay_apart(library: Any) -> None:
    config = small("Bloom", library).config
    one, other = (scattered(library.BloomForCausalLM(config)) for _ in range(2))
    before = other(IDS).logits
    everyformer.speed_up(one)
    assert other.config is config
    assert config._attn_implementation != "everyformer"
    assert torch.equal(other(IDS).logits, before)
    everyformer.restore(one)
    assert one.config is config


@pytest.mark.parametrize("name", ["T5", "Bert", "GPT2"])
def test_a_configuration_that_changes_meanwhile(
    name: str, library: Any, tmp_path: Path
) -> None:
    """A new vocabulary is the model's after `restore`, too, so that it saves and loads."""
    model = small(name, library)
    config, used = model.config, model.config._attn_implementation
    everyformer.speed_up(model)
    model.resize_token_embeddings(120, mean_resizing=False)
    model.config.own = {"said": 1}
    everyformer.restore(model)
    assert model.config is config
    assert (config.vocab_size, config.own) == (120, {"said": 1})
    assert config._attn_implementation == used
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**inputs(model)).logits, model(**inputs(model)).logits)


def test_parts_of_a_configuration_that_change_meanwhile(library: Any) -> None:
    encoder, decoder = small("Bert", library).config, small("GPT2", library).config
    decoder.add_cross_attention, decoder.is_decoder = True, True
    whole = library.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model: Any = library.EncoderDecoderModel(whole)
    everyformer.speed_up(model)
    model.config.decoder.use_cache = False
    model.encoder.config.own = 3
    everyformer.restore(model)
    assert model.config is whole
    assert model.decoder.config is whole.decoder
    assert whole.decoder.use_cache is False
    assert whole.encoder.own == 3
    assert "everyformer" not in (
        whole._attn_implementation,
        whole.encoder._attn_implementation,
        whole.decoder._attn_implementation,
    )


@pytest.mark.parametrize("name", ["T5", "Mpt", "GPT2", "Bert"])
def test_weights_that_the_configuration_asks_for(name: str, library: Any) -> None:
    """It may where transformers runs eager; a call may still say no."""
    model = small(name, library)
    model.set_attn_implementation("eager")
    for part in switch.parts_of(model):
        part.config.output_attentions = True
    theirs = model(**inputs(model))
    everyformer.speed_up(model)
    ours = model(**inputs(model))
    kinds = [key for key in theirs if "attentions" in key and theirs[key]]
    assert kinds
    for key in kinds:
        for x, y in zip(ours[key], theirs[key], strict=True):
            assert (x is None) == (y is None)
            assert x is None or (x - y).abs().max() < 1e-5
    with spied() as ways:
        model(**inputs(model), output_attentions=False)
    assert set(ways) == {"toeplitz_attention"}


def test_the_switch_of_transformers(library: Any) -> None:
    """`set_attn_implementation` there and back, for classes that have no registry too."""
    for name in ("T5", "Bloom", "GPT2"):
        model = small(name, library)
        before = model(**inputs(model)).logits
        used = model.config._attn_implementation
        model.set_attn_implementation("everyformer")
        with spied() as ways:
            ours = model(**inputs(model)).logits
        assert set(ways) == {"toeplitz_attention"}
        assert (ours - before).abs().max() < 1e-5 * before.abs().max()
        model.set_attn_implementation(used)
        assert torch.equal(model(**inputs(model)).logits, before)
        assert not switch.is_on(model)


@pytest.mark.parametrize("name", ["T5", "Bloom", "GPT2"])
def test_the_switch_with_a_dictionary(name: str, library: Any) -> None:
    model = small(name, library)
    before = model(**inputs(model)).logits
    model.set_attn_implementation({"": "everyformer"})
    assert switch.is_on(model)
    with spied() as ways:
        model(**inputs(model))
    assert set(ways) == {"toeplitz_attention"}
    everyformer.restore(model)
    assert torch.equal(model(**inputs(model)).logits, before)


def test_a_dictionary_for_some_parts_is_refused(library: Any) -> None:
    encoder, decoder = small("Bert", library).config, small("GPT2", library).config
    decoder.add_cross_attention, decoder.is_decoder = True, True
    whole = library.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = library.EncoderDecoderModel(whole)
    for asked in ({"encoder": "everyformer"}, {"": "everyformer", "decoder": "eager"}):
        with pytest.raises(
            InputError, match=r"in some parts of EncoderDecoderModel\. Call"
        ):
            model.set_attn_implementation(asked)
        assert not any(switch.is_ours(part.config) for part in switch.parts_of(model))
    model.encoder.set_attn_implementation("everyformer")
    assert switch.is_on(model.encoder)
    model.set_attn_implementation({"": "eager"})


def test_models_with_a_part_of_transformers(library: Any) -> None:
    """A module that holds one, as wrappers do."""
    wrapped = nn.ModuleDict({"inner": small("T5", library)})
    everyformer.speed_up(wrapped)
    inner: Any = wrapped["inner"]
    with spied() as ways:
        inner(**inputs(inner))
    assert ways == ["toeplitz_attention"] * 6
    everyformer.restore(wrapped)
    assert not switch.is_on(wrapped)


@pytest.mark.parametrize("name", ["T5", "Bloom", "Mpt", "FalconRW", "Falcon", "DebertaV2"])
def test_hooks_of_accelerate(name: str, library: Any) -> None:
    """It hooks the modules of models on several devices: before, after, taken off again.

    A hook keeps the forward of the class that it found, which gets other masks from us.
    """
    hooks = pytest.importorskip("accelerate.hooks")
    model = small(name, library)
    theirs = results(model)

    def hook(on: bool) -> None:
        for part in list(model.modules()) if on else ():
            hooks.add_hook_to_module(part, hooks.ModelHook())
        if not on:
            hooks.remove_hook_from_module(model, recurse=True)

    for first in (True, False):
        for on in (True, False):
            if first:
                hook(on)
            everyformer.speed_up(model)
            if not first:
                hook(on)
            ours = results(model)
            assert 0 < (ours[0] - theirs[0]).abs().max() < 1e-5 * theirs[0].abs().max()
            everyformer.restore(model)
            assert torch.equal(results(model)[0], theirs[0])


def test_measured(library: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = small("T5", library)
    results(model)
    kept = {name: part.grad.clone() for name, part in model.named_parameters()}
    report = everyformer.speed_up(model, measure=inputs(model))
    said = capsys.readouterr().out
    assert "before" in said
    assert "forward + backward" in said
    assert report.measured is not None
    assert min(*report.measured.before, *report.measured.after) > 0
    assert switch.is_on(model)
    assert all(torch.equal(part.grad, kept[n]) for n, part in model.named_parameters())
    everyformer.restore(model)
    with pytest.raises(InputError, match=r"was restored\. Call speed_up again"):
        report.measure(inputs(model))
    with pytest.raises(InputError, match="nothing to undo"):
        everyformer.restore(model)


def test_a_configuration_within_another(library: Any) -> None:
    """Of a composite model: parts and whole hold the same one, before and after."""
    encoder, decoder = small("Bert", library).config, small("GPT2", library).config
    decoder.add_cross_attention, decoder.is_decoder = True, True
    whole = library.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = scattered(library.EncoderDecoderModel(whole))
    theirs = model(input_ids=IDS, decoder_input_ids=IDS).logits
    everyformer.speed_up(model)
    assert model.config.encoder is model.encoder.config
    assert model.config.decoder is model.decoder.config
    with spied() as ways:
        ours = model(input_ids=IDS, decoder_input_ids=IDS).logits
    assert ways == ["toeplitz_attention"] * 6
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    everyformer.restore(model)
    assert model.config.encoder is model.encoder.config
    assert torch.equal(model(input_ids=IDS, decoder_input_ids=IDS).logits, theirs)


TWO = """
import sys, everyformer, everyformer.layers
assert "transformers" not in sys.modules
import transformers
found = transformers.AttentionInterface().valid_keys()
assert {"everyformer", "everyformer_urpe"} <= set(found), found

import torch, torch.distributed as dist
from tests.layers.hugging_face.models import IDS, inputs, small
rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
model = small("T5", transformers)
everyformer.speed_up(model)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ids = IDS[rank : rank + 1]
ddp(input_ids=ids, decoder_input_ids=ids.flip(1)).logits.square().mean().backward()
if rank == 0:
    ours = {n: p.grad.clone() for n, p in model.named_parameters()}
    everyformer.restore(model).zero_grad()
    model(**inputs(model)).logits.square().mean().backward()
    for n, p in model.named_parameters():
        assert (ours[n] - p.grad).norm() < 1e-4 * p.grad.norm(), n
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes(tmp_path: Path) -> None:
    """DDP over gloo: the mean of the gradients is that of the whole batch.

    Nobody but the user imports transformers, which is told of everyformer as it is.
    """
    pytest.importorskip("transformers")
    place = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": f"{place}/src:{place}", "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-c", TWO]
    told: dict[str, Any] = {
        "env": env,
        "cwd": place,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    runs: list[Any] = [
        subprocess.Popen([*call, str(rank), str(tmp_path / "meeting")], **told)
        for rank in range(2)
    ]
    said = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
