"""Shards give one list: inline, on local processes, on a cluster, and after a failure.

Workers cannot import this file, so tasks are local functions, which travel by value.
"""

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.config
import distributed
import pytest
from tests.programs import GUARD

from everyformer.certify import shards
from everyformer.certify.shards import Task, map_shards
from everyformer.errors import CertificateError, GridError


def summing() -> Task:
    def task(shared: list[float], index: int) -> dict[str, Any]:
        total = 0.0
        for value in shared[index:]:
            total += value
        return {"index": index, "total": total, "parts": [str(index), {"of": "whole"}]}

    return task


def recording(folder: Path, fails_at: int | None = None, pause: float = 0) -> Task:
    """A task that leaves a file for every run, and may fail once at one index."""

    def task(shared: str, index: int) -> dict[str, Any]:
        runs = len(list(folder.glob(f"ran-{index}-*")))
        (folder / f"ran-{index}-{runs}").touch()
        if index == fails_at and not runs:
            raise GridError(f"shard {index} fails once")
        time.sleep(pause)
        return {"text": f"{shared}{index}"}

    return task


def runs(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("ran-*"))


def watcher() -> tuple[list[tuple[str, int, int]], Callable[[str, int, int], None]]:
    seen: list[tuple[str, int, int]] = []
    return seen, lambda what, done, total: seen.append((what, done, total))


VALUES = [0.1 * k for k in range(20)]
NO_DASHBOARD: dict[str, Any] = {
    "dashboard_address": None,
    "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},  # else port 8787
}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    cluster: Any = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, **NO_DASHBOARD
    )
    with cluster:
        yield cluster.scheduler_address


@pytest.fixture
def tidy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    """No process, no file and no word is left behind."""
    monkeypatch.chdir(tmp_path)
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_one_worker_needs_no_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    seen, progress = watcher()
    found = map_shards(summing(), VALUES, 3, what="sums", workers=1, progress=progress)
    assert [result["index"] for result in found] == [0, 1, 2]
    assert seen == [("sums", done, 3) for done in range(4)]
    assert map_shards(summing(), VALUES, 1, what="sums", workers=8) == found[:1]
    assert map_shards(summing(), VALUES, 0, what="sums") == []
    with pytest.raises(CertificateError, match=r"Install dask and distributed.*workers=1"):
        map_shards(summing(), VALUES, 3, what="sums", workers=2)


@pytest.mark.usefixtures("tidy")
def test_local_processes_give_the_same_list() -> None:
    seen, progress = watcher()
    inline = map_shards(summing(), VALUES, 7, what="sums", workers=1)
    local = map_shards(summing(), VALUES, 7, what="sums", workers=2, progress=progress)
    assert local == inline
    assert seen == [("sums", done, 7) for done in range(8)]


def test_order_is_by_index_and_shared_travels_once(scheduler: str, tmp_path: Path) -> None:
    class Shared:
        def __setstate__(self, state: object) -> None:
            (tmp_path / f"loaded-{os.getpid()}-{time.monotonic_ns()}").touch()

        def __getstate__(self) -> object:
            return "anything"

    def task(shared: object, index: int) -> dict[str, Any]:
        last = time.monotonic() + GUARD
        while index == 0 and not any(tmp_path.glob("[0-9]*")) and time.monotonic() < last:
            time.sleep(0.05)  # another one comes first
        time.sleep(0.02)
        (tmp_path / f"{time.monotonic_ns()}-{index}").touch()
        return {"index": index, "process": os.getpid()}

    found = map_shards(task, Shared(), 8, what="x", scheduler=scheduler)
    arrivals = sorted(path.name for path in tmp_path.glob("[0-9]*"))
    assert not arrivals[0].endswith("-0")
    assert [result["index"] for result in found] == list(range(8))
    loaded = [path.name.split("-")[1] for path in tmp_path.glob("loaded-*")]
    assert len(loaded) == len(set(loaded)) == 2
    assert {str(result["process"]) for result in found} == set(loaded)


@pytest.mark.parametrize("inline", [True, False])
def test_a_second_call_runs_what_is_missing(
    scheduler: str, tmp_path: Path, inline: bool
) -> None:
    seen, progress = watcher()
    where: dict[str, Any] = {"workers": 1} if inline else {"scheduler": scheduler}
    keep: dict[str, Any] = {"work": tmp_path / "work", "key": "a/b: c"}
    task = recording(tmp_path, fails_at=3)
    with pytest.raises(GridError, match="shard 3 fails once"):
        map_shards(task, "s", 6, what="x", **where, **keep)
    kept = len(list((tmp_path / "work").iterdir()))
    before = len(runs(tmp_path))
    found = map_shards(task, "s", 6, what="x", **where, **keep, progress=progress)
    assert found == [{"text": f"s{index}"} for index in range(6)]
    assert seen == [("x", done, 6) for done in range(kept, 7)]
    assert len(runs(tmp_path)) == before + 6 - kept
    assert kept == 3 or not inline


def test_another_key_or_count_is_not_read(tmp_path: Path) -> None:
    task, work = recording(tmp_path), tmp_path / "work"
    for key, count in (("a", 2), ("b", 2), ("a", 3), ("a", 2), ("a", 3)):
        found = map_shards(task, "s", count, what="x", workers=1, work=work, key=key)
        assert [result["text"] for result in found] == [f"s{i}" for i in range(count)]
    assert runs(tmp_path) == [0, 0, 0, 1, 1, 1, 2]


DAMAGES: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "cut": lambda text: text[:-5],
    "changed": lambda text: text.replace("s1", "s7"),
    "key": lambda text: json.dumps({**json.loads(text), "key": "with the same hash"}),
    "list": lambda text: "[1]",
    "bytes": lambda text: "\udcff",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_run_again(tmp_path: Path, damage: str) -> None:
    task, work = recording(tmp_path), tmp_path / "work"
    first = map_shards(task, "s", 3, what="x", workers=1, work=work, key="k")
    (file,) = work.glob("*-1-of-3.json")
    text = DAMAGES[damage](file.read_text())
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert map_shards(task, "s", 3, what="x", workers=1, work=work, key="k") == first
    assert runs(tmp_path) == [0, 1, 1, 2]
    assert len(list(work.iterdir())) == 3


@pytest.mark.parametrize("name", ["file", "missing/work", "x" * 300])
def test_folders_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match=r"cannot be kept in .*\. Give a folder"):
        map_shards(summing(), VALUES, 2, what="x", workers=1, work=tmp_path / name, key="k")


def test_a_shard_that_cannot_be_written(tmp_path: Path) -> None:
    task = recording(tmp_path)
    map_shards(task, "s", 2, what="x", workers=1, work=tmp_path / "work", key="k")
    (file,) = (tmp_path / "work").glob("*-1-of-2.json")
    file.unlink()
    file.mkdir()
    with pytest.raises(CertificateError, match="Shard 1 of 2 cannot be kept"):
        map_shards(task, "s", 2, what="x", workers=1, work=tmp_path / "work", key="k")
    assert len(list((tmp_path / "work").iterdir())) == 2


def test_arguments_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="without a key"):
        map_shards(summing(), VALUES, 2, what="x", work=tmp_path)
    with pytest.raises(CertificateError, match="2 shards, 0 workers"):
        map_shards(summing(), VALUES, 2, what="x", workers=0)


def test_a_lost_worker_is_replaced(scheduler: str, tmp_path: Path) -> None:
    def task(shared: Path, index: int) -> dict[str, Any]:
        if index == 1 and not (shared / "died").exists():
            (shared / "died").touch()
            os._exit(1)
        return {"index": index}

    found = map_shards(task, tmp_path, 4, what="x", scheduler=scheduler)
    assert (tmp_path / "died").exists()
    assert found == [{"index": index} for index in range(4)]


@pytest.mark.usefixtures("tidy")
def test_a_shard_that_ends_its_workers_is_given_up() -> None:
    def task(shared: object, index: int) -> dict[str, Any]:
        os._exit(1)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(CertificateError, match=r"A shard failed.*Use fewer workers"),
    ):
        map_shards(task, None, 2, what="x", workers=2)


@pytest.mark.usefixtures("tidy")
def test_an_interrupt_leaves_nothing() -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_shards(summing(), VALUES, 9, what="x", workers=2, progress=interrupt)


def test_a_running_scheduler(scheduler: str, tmp_path: Path) -> None:
    found = map_shards(summing(), VALUES, 7, what="x", scheduler=scheduler)
    assert found == map_shards(summing(), VALUES, 7, what="x", workers=1)
    task = recording(tmp_path, fails_at=0, pause=0.05)
    with pytest.raises(GridError, match="shard 0 fails once"):
        map_shards(task, "s", 80, what="x", scheduler=scheduler)
    assert map_shards(task, "s", 1, what="x", scheduler=scheduler) == [{"text": "s0"}]
    assert len(runs(tmp_path)) < 81  # the rest was cancelled


def test_workers_of_another_version(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        return f"{name} of process {os.getpid()}"

    monkeypatch.setattr(shards, "version", version)
    with pytest.raises(CertificateError, match=r"need everyformer .*Install everyformer=="):
        map_shards(summing(), VALUES, 3, what="x", scheduler=scheduler)


def test_a_scheduler_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CONNECT_SECONDS", 0.5)
    empty: Any = distributed.LocalCluster(n_workers=0, threads_per_worker=1, **NO_DASHBOARD)
    with empty, pytest.raises(CertificateError, match=r"0/1 workers.*dask worker tcp://"):
        map_shards(summing(), VALUES, 3, what="x", scheduler=empty.scheduler_address)


@pytest.mark.usefixtures("tidy")
def test_no_scheduler_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CONNECT_SECONDS", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused
        closed = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for address in (closed, "nonsense", "foo://127.0.0.1:1", "tls://127.0.0.1:1"):
            with pytest.raises(CertificateError, match=f"{address}.*cannot be used.*Give"):
                map_shards(summing(), VALUES, 3, what="x", scheduler=address)
