"""Docstrings as the reference reads them: what stands under `Example:` is a session."""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """`Example:` becomes the section that Griffe knows, `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Of every function, class and module that is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
