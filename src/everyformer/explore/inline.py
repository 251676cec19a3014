"""One HTML file from the modules under `page/`: no server, no request, no build step.

A module imports others by `import { a, b } from "./name.js";` and exports functions,
classes and constants. Each becomes a function that returns what it exports; they are run in
the order of their imports. A Content-Security-Policy names the one script by its hash:
nothing else on the page can run, and nothing can be loaded.
"""

import base64
import hashlib
import html
import re
from pathlib import Path
from typing import Any

from everyformer.errors import printable
from everyformer.explore.embedding import safe_json
from everyformer.page import Page

PAGE = Path(__file__).parent / "page"

_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"\./([\w-]+)\.js";[ \t]*$', re.M)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+([\w$]+)", re.M)
_OTHER = re.compile(r"^\s*(import\b(?!\()|export\b)", re.M)


def page_of(kind: str, name: str, data: dict[str, Any], about: str = "") -> Page:
    """The page of a network, layer, pattern or comparison, whose name is its title."""
    shown = printable(name)
    title = f"{shown}{about} · everyformer explorer"
    return Page(page({"kind": kind, "title": shown, **data}, title), title)


def page(data: dict[str, Any], title: str, start: str = "main") -> str:
    """The whole page.

    Args:
        data: What the page shows; finite numbers, words, lists and objects.
        title: Shown as text in the title bar.
        start: The module that runs.
    """
    script = bundle(start)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": (PAGE / "style.css").read_text(encoding="utf-8"),
        "data": safe_json(data),
        "script": script,
    }
    template = (PAGE / "index.html").read_text(encoding="utf-8")
    pieces = re.split(r"\{\{(\w+)\}\}", template)  # text, name, text, name, ..
    return "".join(parts[p] if k % 2 else p for k, p in enumerate(pieces))


def bundle(start: str) -> str:
    """All modules that `start` needs, as one script.

    Raises:
        ValueError: If a module imports in another way, or in a circle, or would end the
            script element.
    """
    done: dict[str, str] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in above:
            msg = f"The modules {' -> '.join([*above, name])} import each other."
            raise ValueError(msg)
        source = (PAGE / f"{name}.js").read_text(encoding="utf-8")
        for found in _IMPORT.finditer(source):
            add(found[2], (*above, name))
        done[name] = _as_function(name, source)

    add(start, ())
    script = '"use strict";\n' + "\n".join(done.values())
    if "</script" in script.lower() or "<!--" in script:
        msg = "A module holds text that would end the script element of the page."
        raise ValueError(msg)
    return script


def _as_function(name: str, source: str) -> str:
    exported = [found[2] for found in _EXPORT.finditer(source)]
    body = _EXPORT.sub(r"\1 \2", source)
    body = _IMPORT.sub(lambda m: f"const {{{_renamed(m[1])}}} = {_variable(m[2])};", body)
    other = _OTHER.search(body)
    if other is not None:
        line = body[other.start() :].strip().partition("\n")[0]
        msg = f"{name}.js: {line!r} is not an import or export that can be inlined."
        raise ValueError(msg)
    return (
        f"const {_variable(name)} = (() => {{\n{body}\n"
        f"return {{ {', '.join(exported)} }};\n}})();"
    )


def _renamed(names: str) -> str:
    """`a as b` of an import, as a pattern of an assignment has it."""
    return re.sub(r"(\w+)\s+as\s+(\w+)", r"\1: \2", names)


def _variable(name: str) -> str:
    return f"module_{name.replace('-', '_')}"
