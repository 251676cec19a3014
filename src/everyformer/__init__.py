"""Turns a function into Transformer weights; the theory of expressivity, executable."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from everyformer.beside_transformers import register_when_imported
from everyformer.explorable import Place, makes_pages

if TYPE_CHECKING:
    from everyformer import patterns as patterns
    from everyformer import targets as targets
    from everyformer.certify.bound import Bound as Bound
    from everyformer.certify.certificate import Certificate as Certificate
    from everyformer.certify.proof import Computing as Computing
    from everyformer.certify.verification import Verification as Verification
    from everyformer.certify.verify import verify as verify
    from everyformer.checks.contextual_mapping import ContextualMapping as ContextualMapping
    from everyformer.checks.contextual_mapping import (
        contextual_mapping as contextual_mapping,
    )
    from everyformer.checks.report import Report as Report
    from everyformer.checks.report import check as check
    from everyformer.construct.comparison import Comparison as Comparison
    from everyformer.construct.memory import Memory as Memory
    from everyformer.construct.memory import memorise as memorise
    from everyformer.construct.method import Method as Method
    from everyformer.construct.method import Plan as Plan
    from everyformer.construct.pipeline import Built as Built
    from everyformer.construct.pipeline import compare as compare
    from everyformer.construct.pipeline import construct as construct
    from everyformer.construct.pipeline import plan as plan
    from everyformer.construct.registry import Averaging as Averaging
    from everyformer.construct.registry import Cheapest as Cheapest
    from everyformer.construct.registry import Compile as Compile
    from everyformer.construct.registry import Partition as Partition
    from everyformer.construct.registry import SelectiveShifts as SelectiveShifts
    from everyformer.construct.registry import SparseShifts as SparseShifts
    from everyformer.construct.registry import UrpeShifts as UrpeShifts
    from everyformer.layers.hugging_face import register as register
    from everyformer.layers.hugging_face import restore as restore
    from everyformer.layers.hugging_face import speed_up as speed_up
    from everyformer.model.architecture import ArchitectureSpec as ArchitectureSpec
    from everyformer.model.attention_spec import AttentionSpec as AttentionSpec
    from everyformer.model.network import Network as Network
    from everyformer.model.network import load as load
    from everyformer.targets.target import Target as Target
    from everyformer.verdict import Verdict as Verdict

__version__ = "0.2.0"
"""The one place that says it: pyproject.toml and CITATION.cff follow."""

_PLACES = {
    "ArchitectureSpec": "model.architecture",
    "AttentionSpec": "model.attention_spec",
    "Averaging": "construct.registry",
    "Bound": "certify.bound",
    "Built": "construct.pipeline",
    "Certificate": "certify.certificate",
    "Cheapest": "construct.registry",
    "Comparison": "construct.comparison",
    "Compile": "construct.registry",
    "Computing": "certify.proof",
    "ContextualMapping": "checks.contextual_mapping",
    "Memory": "construct.memory",
    "Method": "construct.method",
    "Network": "model.network",
    "Partition": "construct.registry",
    "Plan": "construct.method",
    "Report": "checks.report",
    "SelectiveShifts": "construct.registry",
    "SparseShifts": "construct.registry",
    "Target": "targets.target",
    "UrpeShifts": "construct.registry",
    "Verdict": "verdict",
    "Verification": "certify.verification",
    "check": "checks.report",
    "compare": "construct.pipeline",
    "construct": "construct.pipeline",
    "contextual_mapping": "checks.contextual_mapping",
    "load": "model.network",
    "memorise": "construct.memory",
    "plan": "construct.pipeline",
    "register": "layers.hugging_face",
    "restore": "layers.hugging_face",
    "speed_up": "layers.hugging_face",
    "verify": "certify.verify",
}
"""Where each public name comes from; it is imported when it is first used."""

__all__ = [*_PLACES, "patterns", "targets"]  # pyright: ignore[reportUnsupportedDunderAll]


class _Package(ModuleType):
    """The package; its folder `construct` does not take the name of the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in ("patterns", "targets"):
        return import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        from difflib import get_close_matches

        near = get_close_matches(name, __all__, n=1)
        meant = f". Did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@makes_pages
def _page(shown: Any, site: str | None, code: str | None, tour: Place | None) -> Any:
    from everyformer.explore.show import Links, explore

    return explore(shown, Links(site, code), tour)


sys.modules[__name__].__class__ = _Package
register_when_imported()
