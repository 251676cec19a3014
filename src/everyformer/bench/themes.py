"""All benchmarks by name; light to import, since the command line names them all."""

from importlib import import_module
from types import ModuleType

THEMES = (
    "building",
    "execution",
    "certificates",
    "constructions",
    "rates",
    "residual",
    "attention",
    "pairwise",
    "training",
    "bert",
    "xl",
    "graphs",
    "sparse",
    "causal",
    "long-context",
    "mixers",
    "mixer-costs",
    "hostile",
    "work",
    "tightness",
    "compile",
    "compile-scaling",
    "peers",
    "models",
)
RESUMABLE = ("attention", "causal", "compile", "compile-scaling", "long-context", "models")
"""Benchmarks that keep each row as soon as it is known."""

CHOOSING = {
    "models": ("only", "minutes"),
    "sparse": ("only",),
    "long-context": ("only", "minutes", "data"),
}
"""Options of single benchmarks."""

ELSEWHERE = {
    "compile": "methods.compile.compiling",
    "compile-scaling": "methods.compile.scaling",
    "peers": "methods.compile.peers",
}
"""The modules that are not called as their themes."""


def load(theme: str) -> ModuleType:
    """The module of a benchmark: `run`, `table`, and `picture` where there is one."""
    place = ELSEWHERE.get(theme, theme.replace("-", "_"))
    return import_module(f"everyformer.bench.{place}")
