"""Gains on models of transformers: on which modules, and that they are saved with them.

The settings of `add_urpe` stay in the configuration of a model, as `RECORD`, which is saved
with it. `from_pretrained` reads them there, puts the gains on the model it makes, and fills
them with what was saved.
"""

from collections.abc import Collection, Iterator
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from everyformer.errors import InputError
from everyformer.layers.gains import GAIN
from everyformer.layers.hugging_face import classes, wanted_weights
from everyformer.layers.hugging_face.function import GAINED, NAME
from everyformer.layers.hugging_face.swapping import original

HEADS = {
    "BertSelfAttention": "num_attention_heads",
    "RobertaSelfAttention": "num_attention_heads",
    "T5Attention": "n_heads",
    "GPT2Attention": "num_heads",
    "LlamaAttention": "config.num_attention_heads",
}
"""The attention classes that are supported, and where each keeps its number of heads."""

CROSS_ATTENTION = ("BertCrossAttention", "RobertaCrossAttention")
"""Classes that are left as they are: i - j has no meaning between two sequences."""


RECORD = "everyformer_urpe"
"""Name of the settings in the configuration of a model, which is saved with it."""


def attention_modules(
    model: nn.Module, leave: Collection[str] = ()
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Each self-attention of a model that is not left out, with its innermost model."""
    library = import_module("transformers")
    owners: dict[int, nn.Module] = {}
    for part in model.modules():  # outer ones first, so that inner ones overwrite
        if isinstance(part, library.PreTrainedModel):
            owners |= {id(inner): part for inner in part.modules()}
    cross = {
        id(layer.EncDecAttention)
        for layer in model.modules()
        if type(layer).__name__ == "T5LayerCrossAttention"
    }
    for name, module in model.named_modules():
        known = type(module).__name__ in HEADS and name not in leave
        if not known or id(module) in cross:
            continue
        if not getattr(module, "is_cross_attention", False):
            yield owners[id(module)], module


def why_not(model: nn.Module) -> str | None:
    """What stands against gains on this model."""
    strange = sorted({type(part).__name__ for part in model.modules() if _is_other(part)})
    if strange:
        return f"it has {', '.join(strange)}; known are {', '.join(sorted(HEADS))}"
    replaced = [module for _, module in attention_modules(model)]
    return next((why for why in map(classes.why_replaced, replaced) if why), None)


def _is_other(module: nn.Module) -> bool:
    """Whether a module is attention of another class, or of one made of a known one."""
    known, name = {*HEADS, *CROSS_ATTENTION}, type(module).__name__
    if name in known and classes.place(module) in classes.CLASSES:
        return False
    made_of = any(base.__name__ in known for base in original(module).__mro__)
    return made_of or (hasattr(module, "config") and "Attention" in name)


def num_heads(module: nn.Module) -> int:
    """Number of query heads of a supported module."""
    found: Any = module
    for name in HEADS[type(module).__name__].split("."):
        found = getattr(found, name)
    return int(found)


def attach(owner: nn.Module, module: nn.Module, home: nn.Module) -> None:
    """Let the module use the gain of `home`, within the model `owner`."""
    object.__setattr__(module, "urpe", (home,))
    module.register_forward_pre_hook(_refuse_other_attention, with_kwargs=True)
    if not hasattr(owner, "urpe_guard"):
        guard = owner.register_forward_pre_hook(_refuse_calls, with_kwargs=True)
        object.__setattr__(owner, "urpe_guard", (guard, *wanted_weights.listen(owner)))


def switch(model: nn.Module, settings: dict[str, Any]) -> None:
    """Make the model call our attention function, and its configuration say so.

    The saved configuration asks for our function by name, too: where everyformer is not
    known, `from_pretrained` finds no such function.
    """
    library = import_module("transformers")
    set_implementation: Any = model.set_attn_implementation
    set_implementation(GAINED)
    for part in model.modules():
        if isinstance(part, library.PreTrainedModel):
            config: Any = part.config
            setattr(config, RECORD, settings)
            config.attn_implementation = GAINED
            config._attn_implementation = GAINED  # transformers 5.17 forgets T5's stacks
        if not hasattr(part, "urpe"):
            object.__setattr__(part, "urpe", None)  # without a gain, as it should be


def guard(base: Any) -> None:
    """Let models of transformers be loaded with their gains, and never without them."""
    made, saved = base.__init__, base.save_pretrained
    loaded = vars(base)["from_pretrained"].__func__

    @wraps(made)
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        made(self, config, *args, **kwargs)
        used = getattr(self.config, "_attn_implementation", None)
        if getattr(config, RECORD, None) is not None and used != GAINED:
            msg = (
                f"attn_implementation={used!r} was given for a {type(self).__name__} that "
                "was saved with gains (add_urpe), which it knows nothing of. Leave it out: "
                "everyformer's own function runs."
            )
            raise InputError(msg)

    @wraps(saved)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        why = _unrecorded(self)
        if why:
            msg = f"{type(self).__name__} cannot be saved with its gains: {why}"
            raise InputError(f"{msg}. Call add_urpe on the model that is saved.")
        return saved(self, *args, **kwargs)

    @wraps(loaded)
    def load(cls: Any, name: Any = None, *args: Any, **options: Any) -> Any:
        settings = None if hasattr(cls, "urpe_settings") else record_of(name, options)
        if settings is None:
            return loaded(cls, name, *args, **options)
        return _with_gains(cls, settings, name, *args, **options)

    base.__init__, base.save_pretrained = init, save
    base.from_pretrained = classmethod(load)


def record_of(name: Any, options: dict[str, Any]) -> dict[str, Any] | None:
    """The settings of `add_urpe` in the configuration of a saved model, if it has any."""
    config = options.get("config")
    if config is not None and not isinstance(config, str | Path):
        return getattr(config, RECORD, None)
    library = import_module("transformers")
    hub = ("cache_dir", "revision", "token", "subfolder", "local_files_only")
    given = {key: options[key] for key in hub if key in options}
    try:
        kind = getattr(library, "PreTrainedConfig", None) or library.PretrainedConfig
        found = kind.get_config_dict(config or name, **given)[0]
    except (OSError, ValueError):  # `from_pretrained` will say what is wrong
        return None
    return found.get(RECORD)


def _with_gains(
    made: Any, settings: dict[str, Any], name: Any, *args: Any, **options: Any
) -> Any:
    """Load a model as one of a class that puts gains on as soon as it is made."""
    from everyformer.layers.add_urpe import add_urpe

    if options.get("attn_implementation") in (None, NAME):
        options["attn_implementation"] = GAINED

    def init(self: Any, *given: Any, **more: Any) -> None:
        made.__init__(self, *given, **more)
        leave = _in_this_class(self, settings.get("leave", ()))
        own: dict[str, Any] = {**settings, "leave": leave}
        add_urpe(self, **own)

    gained: Any = type(
        made.__name__, (made,), {"__init__": init, "urpe_settings": settings}
    )
    wants = options.pop("output_loading_info", False)
    model, found = gained.from_pretrained(name, *args, output_loading_info=True, **options)
    model.__class__ = made
    lost = [key for key in found["missing_keys"] if GAIN in key]
    if lost:
        msg = f"{name} has no {', '.join(sorted(lost))}. It was not saved with its gains."
        raise InputError(msg)
    return (model, found) if wants else model


def _in_this_class(model: Any, leave: Collection[str]) -> list[str]:
    """Names of modules as a model of another class has them: with its prefix, or without.

    What it does not have is left out: an encoder alone has no decoder to leave as it is.
    """
    names = {name for name, _ in model.named_modules()}
    prefix = f"{model.base_model_prefix}."
    found = [(name, name.removeprefix(prefix), prefix + name) for name in leave]
    return [next((x for x in some if x in names), "") for some in found if names & {*some}]


def _unrecorded(model: Any) -> str:
    """What the configuration of a model does not say of its gains."""
    gained = {
        name
        for name, part in model.named_modules()
        if getattr(part, "urpe", None) is not None
    }
    settings = getattr(model.config, RECORD, None)
    if not gained or settings is None:
        return f"{min(gained)} has one, its configuration has no record" if gained else ""
    names = {id(part): name for name, part in model.named_modules()}
    leave = settings.get("leave", ())
    bare = {names[id(part)] for _, part in attention_modules(model, leave)} - gained
    return f"{min(bare)} has none, while its record says so" if bare else ""


def _refuse_other_attention(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    config: Any = module.config
    if config._attn_implementation != GAINED:
        msg = (
            f"{type(module).__name__} has a gain, but its attention implementation is "
            f"{config._attn_implementation!r}, which knows of none. Call "
            f"model.set_attn_implementation({GAINED!r}) to switch it on again."
        )
        raise InputError(msg)
    other = args[2] if len(args) > 2 else kwargs.get("key_value_states")
    if type(module).__name__ == "T5Attention" and other is not None:
        msg = (
            f"key_value_states has shape {tuple(other.shape)}: this T5Attention is "
            "cross-attention, where an offset i - j has no meaning. Give add_urpe its name "
            "in leave=(..)."
        )
        raise InputError(msg)


def _refuse_calls(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if getattr(cache, "is_compileable", False):
        msg = (
            f"past_key_values is a {type(cache).__name__} of fixed size, so the number of "
            "keys does not tell the place of a query. Use the default cache."
        )
        raise InputError(msg)
