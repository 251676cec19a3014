"""Tells transformers of everyformer as soon as both are imported, and imports neither.

So `AutoModel.from_pretrained` finds `attn_implementation="everyformer"`, and the gains of
models that were saved with them, in whatever order the two were imported.
"""

import sys
from typing import Any

AWAITED = "transformers.modeling_utils"
"""The module with the registries."""


def register_when_imported() -> None:
    """Register now if transformers has its models already, or once it has."""
    if AWAITED in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, Awaiting())


class Awaiting:
    """A finder that finds nothing itself: it lets others, and registers afterwards."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of the awaited module, with a loader that registers."""
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            _register()

        vars(spec.loader)["exec_module"] = exec_module
        return spec


def _register() -> None:
    try:
        from everyformer.layers.hugging_face import register

        register()
    except (AttributeError, ImportError) as error:
        from logging import getLogger

        said = "transformers is not told of everyformer: %s; see everyformer.register()"
        getLogger(__name__).warning(said, error)
