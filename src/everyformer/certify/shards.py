"""Independent shards of one proof: in this process, on this machine, or on a cluster.

The results are the same wherever the shards ran and in whatever order they came back.
"""

import functools
import hashlib
import json
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from operator import call
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from everyformer.errors import CertificateError
from everyformer.progress import Progress, no_progress

Task = Callable[[Any, int], dict[str, Any]]
"""Called as task(shared, index); must not change `shared`."""

_CONNECT_SECONDS = 10


def map_shards(
    task: Task,
    shared: Any,
    count: int,
    *,
    what: str,
    scheduler: str | None = None,
    workers: int | None = None,
    work: Path | None = None,
    key: str = "",
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Run task(shared, index) for every index below `count`, each on its own.

    With one worker or one shard only this process is used; else the cluster of `scheduler`,
    or local processes. A shard whose worker is lost runs again on another worker.

    Args:
        task: A function that workers can import. It returns JSON, exact numbers as strings.
        shared: What every shard needs. It is pickled and sent to each worker once.
        count: Number of shards; never to be chosen by the number of workers.
        what: What is done, for `progress`.
        scheduler: Address of a running Dask scheduler, such as "tcp://host:8786".
        workers: Number of processes without `scheduler`. Default: one for each CPU.
        work: Folder that keeps finished shards, created if its parent exists. A later call
            with the same key and count reads them instead of running them.
        key: Hash of everything the results depend on. Needed with `work`.
        progress: Called at the start and after every shard.

    Returns:
        The results in the order of their index.

    Raises:
        CertificateError: If the folder or the cluster cannot be used. What the task raises
            comes through as it is, and ends the other shards.
    """
    workers = _usable_cpus() if workers is None else workers
    if count < 0 or workers < 1:
        raise CertificateError(f"{count} shards, {workers} workers: give >= 0 and >= 1.")
    folder = None if work is None else _Folder(work, key, count)
    results = {} if folder is None else folder.read()
    missing = [index for index in range(count) if index not in results]
    progress(what, len(results), count)
    run = functools.partial(_run_shard, task, shared)
    if not missing or (not scheduler and min(workers, len(missing)) == 1):
        arrivals = (run(index) for index in missing)
    else:
        arrivals = _run_on_dask(run, missing, scheduler, workers)
    with closing(arrivals):
        for index, text in arrivals:
            if folder is not None:
                folder.write(index, text)
            results[index] = json.loads(text)
            progress(what, len(results), count)
    return [results[index] for index in range(count)]


@contextmanager
def _refusing(errors: Any, given: str, advice: str) -> Generator[None, None, None]:
    """Turn errors into a refusal: what was given, why it cannot work, what to do."""
    try:
        yield
    except errors as error:
        raise CertificateError(f"{given}: {str(error).rstrip('.')}. {advice}") from error


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: only those this process may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_shard(task: Task, shared: Any, index: int) -> tuple[int, str]:
    """The index of one shard and its result as JSON text, wherever it runs."""
    return index, json.dumps(task(shared, index), allow_nan=False)


class _Folder:
    """Finished shards of one key and count, one file each."""

    def __init__(self, path: Path, key: str, count: int) -> None:
        self.path, self.key, self.count = path, key, count
        given = f"Finished shards cannot be kept in {path}"
        if not key:
            raise CertificateError(f"{given} without a key: runs would mix. Give one.")
        advice = "Give a folder you can write to, or a new one in a folder that exists."
        with _refusing(OSError, given, advice):
            path.mkdir(exist_ok=True)
            TemporaryFile(dir=path).close()  # permissions alone do not tell

    def read(self) -> dict[int, dict[str, Any]]:
        """Every shard that is here and whole; the others are run again."""
        found: dict[int, dict[str, Any]] = {}
        for index in range(self.count):
            with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                entry = json.loads(self._place(index).read_bytes())
                if entry == self._entry(index, json.dumps(entry["result"])):
                    found[index] = entry["result"]
        return found

    def write(self, index: int, text: str) -> None:
        """Keep one shard; its file appears complete or not at all."""
        given = f"Shard {index} of {self.count} cannot be kept in {self.path}"
        advice = "Mend that and run again: the shards that are there are not lost."
        with _refusing(OSError, given, advice), TemporaryDirectory(dir=self.path) as part:
            new = Path(part, "shard.json")
            new.write_text(json.dumps(self._entry(index, text)), encoding="utf-8")
            new.replace(self._place(index))

    def _place(self, index: int) -> Path:
        short = hashlib.sha256(self.key.encode()).hexdigest()[:16]
        return self.path / f"{short}-{index}-of-{self.count}.json"

    def _entry(self, index: int, text: str) -> dict[str, Any]:
        digest = hashlib.sha256(text.encode()).hexdigest()
        shard = {"key": self.key, "index": index, "count": self.count}
        return {**shard, "sha256": digest, "result": json.loads(text)}


def _run_on_dask(
    run: Callable[..., Any], indices: list[int], scheduler: str | None, workers: int
) -> Generator[tuple[int, str], None, None]:
    """What run(index) returns for each index, in the order of arrival."""
    advice = "Install dask and distributed, or give workers=1 and no scheduler."
    with _refusing(ImportError, "The shards cannot run on several processes", advice):
        dask: Any = import_module("distributed")
    payload = import_module("cloudpickle").dumps(run)
    local = _local_client(dask, min(workers, len(indices)))
    opened = _remote_client(dask, scheduler) if scheduler else local
    # What matters in Dask's log comes here as an exception. And `shared` does belong in
    # the graph: a scattered copy would be lost with the last worker that holds it.
    quiet = dask.utils.silence_logging_cmgr(logging.CRITICAL)
    # Dask has workers give memory back after every array, which took most of their time.
    settings = {
        "distributed.admin.large-graph-warning-threshold": "1 TB",
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30,
        "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**30,
    }
    with quiet, import_module("dask.config").set(settings), opened as client:
        # The scheduler sees only bytes and functions of Python: it needs no everyformer.
        runs = [client.submit(pickle.loads, payload, pure=False)] * len(indices)
        lost = (dask.KilledWorker, dask.CancelledError)
        advice = "Use fewer workers if memory is short; see that the scheduler is alive."
        for future in dask.as_completed(
            client.map(call, runs, indices, pure=False), loop=client.loop
        ):
            with _refusing(lost, "A shard failed", advice):
                yield future.result()


@contextmanager
def _local_client(dask: Any, workers: int) -> Generator[Any, None, None]:
    """A client of worker processes that end with the block."""
    given = f"{workers} worker processes cannot be started"
    advice = 'Call this below `if __name__ == "__main__":`, or give workers=1.'
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ExitStack() as stack:
        with _refusing(Exception, given, advice), _interrupts_held():
            cluster = dask.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # else port 8787
                silence_logs=logging.CRITICAL,
                memory_limit=0,  # a limit stops a worker that others would leave room for
                local_directory=scratch,
            )
            stack.enter_context(cluster)
            client = stack.enter_context(dask.Client(cluster, set_as_default=False))
        try:
            yield client
        finally:
            with _interrupts_held():
                stack.close()


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Hold Ctrl-C back while processes start, which never see it, and while they end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    if posix := hasattr(signal, "pthread_sigmask"):
        import_module("multiprocessing.resource_tracker").ensure_running()  # it unblocks
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        if posix:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if held:
            raise KeyboardInterrupt


@contextmanager
def _remote_client(dask: Any, scheduler: str) -> Generator[Any, None, None]:
    """A client of a running scheduler whose workers have this everyformer."""
    given = f"The Dask scheduler {scheduler!r} cannot be used"
    advice = "Give the address that `dask scheduler` prints, such as tcp://host:8786."
    with _refusing(Exception, given, advice):
        # A client that fails to connect leaves a thread and noise behind: knock first.
        how = {"timeout": _CONNECT_SECONDS, **dask.Security().get_connection_args("client")}
        dask.utils.LoopRunner().run_sync(dask.comm.connect, scheduler, **how).abort()
        client = dask.Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
    with client:
        with _refusing(TimeoutError, given, f"Start `dask worker {scheduler}`."):
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        here = version("everyformer")
        found = client.run(version, "everyformer", on_error="return")
        others = [f"{worker}: {there}" for worker, there in found.items() if there != here]
        if others:
            why = f"its workers need everyformer {here}, but have {', '.join(others)}"
            raise CertificateError(f"{given}: {why}. Install everyformer=={here} there.")
        yield client
