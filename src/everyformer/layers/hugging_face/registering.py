"""What transformers is told of everyformer, once and for all.

Its registries get our functions. `PreTrainedModel` gets to know them in five places: models
that are made for our function are switched on (`__init__`, `post_init`), or when they are
asked to be (`set_attn_implementation`); those with gains are saved and loaded with them
(`save_pretrained`, `from_pretrained`). Other models run through unchanged.
"""

from functools import wraps
from importlib import import_module
from typing import Any

from everyformer.errors import InputError
from everyformer.layers.hugging_face import urpe
from everyformer.layers.hugging_face.function import GAINED, NAME, enter, is_ours
from everyformer.layers.hugging_face.switch import (
    is_on,
    let_falcon_choose,
    swap_all,
    switch_off,
    switch_on,
    switch_on_new,
)


def register() -> None:
    """Make `attn_implementation="everyformer"` known to transformers.

    Happens by itself where both are imported. From then on
    `AutoModel.from_pretrained(.., attn_implementation="everyformer")` and
    `model.set_attn_implementation("everyformer")` do what `speed_up` does.
    """
    enter()
    base = import_module("transformers").PreTrainedModel
    if not hasattr(base.post_init, "everyformer"):
        _tell(base)
        urpe.guard(base)


def _tell(base: Any) -> None:
    made, finished, chosen = base.__init__, base.post_init, base.set_attn_implementation

    @wraps(made)
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        made(self, config, *args, **kwargs)
        let_falcon_choose(self)

    @wraps(finished)
    def post_init(self: Any) -> Any:
        found = finished(self)
        if is_ours(self.config):
            switch_on_new(self)
        return found

    @wraps(chosen)
    def set_attn_implementation(
        self: Any, attn_implementation: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _means_ours(self, attn_implementation):
            switch_on(self)
            return None
        if is_on(self):
            switch_off(self)
        found = chosen(self, attn_implementation, *args, **kwargs)
        if attn_implementation == GAINED:
            swap_all(self)
        return found

    vars(post_init)["everyformer"] = True
    base.__init__, base.post_init = init, post_init
    base.set_attn_implementation = set_attn_implementation


def _means_ours(model: Any, asked: Any) -> bool:
    """Whether our function is asked for, in the whole model.

    Raises:
        InputError: If it is asked for in parts, by a dictionary of their names.
    """
    if not isinstance(asked, dict):
        return asked == NAME
    if NAME not in str(asked):
        return False
    if asked == {"": NAME} and not model.config.sub_configs:
        return True
    msg = (
        f"attn_implementation={asked} asks for everyformer's function in some parts of "
        f"{type(model).__name__}. Call set_attn_implementation({NAME!r}) on those parts, "
        "or on the whole."
    )
    raise InputError(msg)


class Registered:
    """Lets a copy of a model, perhaps in another process, find our function again."""

    def __init__(self) -> None:
        register()

    def __reduce__(self) -> tuple[type["Registered"], tuple[()]]:
        return Registered, ()
