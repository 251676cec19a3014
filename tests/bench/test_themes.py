"""Every benchmark has a name, and its options are those of its function."""

from inspect import signature
from pathlib import Path

from everyformer import bench
from everyformer.bench.themes import CHOOSING, RESUMABLE, THEMES, load


def test_every_benchmark_is_named_once() -> None:
    folder = Path(bench.__path__[0])
    files = [path for path in folder.rglob("*.py") if "\ndef table(" in path.read_text()]
    assert sorted(map(str, files)) == sorted(str(load(name).__file__) for name in THEMES)


def test_options_are_those_that_the_benchmarks_take() -> None:
    takes = {name: signature(load(name).run).parameters for name in THEMES}
    assert {name for name in takes if "kept" in takes[name]} == {*RESUMABLE}
    shared = {"quick", "progress", "kept", "profile"}  # the last in Python alone
    chosen = {
        name: tuple(key for key in takes[name] if key not in shared) for name in takes
    }
    assert {name: keys for name, keys in chosen.items() if keys} == CHOOSING
