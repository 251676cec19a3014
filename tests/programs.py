"""Programs that tests start: each in its own environment, heard when it fails."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

GUARD = 1200
"""Seconds after which a program is taken to hang. It says nothing about speed."""


def run_program(
    *command: object,
    code: int = 0,
    env: Mapping[str, str] | None = None,
    scratch: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Args:
        command: The program and its arguments.
        code: The exit code that it must have.
        env: Its environment; by default this process's.
        scratch: A folder for its temporary files, which no other program uses.

    Raises:
        AssertionError: If it exits with another code, with all that it printed.
    """
    words = [str(word) for word in command]
    environment = dict(os.environ if env is None else env)
    if scratch is not None:
        scratch.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(scratch)
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=GUARD
    )
    assert done.returncode == code, (
        f"{' '.join(words)}\nexit code {done.returncode}, expected {code}\n"
        f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    )
    return done
