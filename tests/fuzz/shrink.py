"""A simpler problem that fails in the same way: Hypothesis makes the bytes smaller."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

import hypothesis
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from fuzz import modes
from fuzz.operators import OPERATORS
from fuzz.problems import TAPE_BYTES

TAPES = st.binary(min_size=TAPE_BYTES, max_size=TAPE_BYTES)
SECONDS_OF_A_CALL = 20.0


class Failed(Exception):
    """Of a problem that fails."""


def kind_of(message: str) -> str:
    """What failures have in common: the exception, or the signal."""
    return message.split(":", 1)[0]


def message_of(operator: str, mode: str, data: bytes) -> str | None:
    """Of the exception that the problem of these bytes raises."""
    try:
        modes.check(mode, modes.make(OPERATORS[operator], mode, data))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def message_of_process(operator: str, mode: str, data: bytes) -> str | None:
    """The same in a process of its own, which may crash or hang. This process must not have
    computed anything in parallel: threads do not survive a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        message = message_of(operator, mode, data)
        os.write(writer, (message or "").encode()[:4000])
        os._exit(0)
    os.close(writer)
    is_ready, _, _ = select.select([reader], [], [], SECONDS_OF_A_CALL)
    if not is_ready:
        os.kill(child, signal.SIGKILL)
    text = os.read(reader, 5000).decode(errors="replace") if is_ready else ""
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if not is_ready:
        return "hangs: it takes longer than any call should"
    if os.WIFSIGNALED(status):
        return f"{signal.Signals(os.WTERMSIG(status)).name}: the process is killed"
    return text or None


def shrink(
    data: bytes, message: str, message_of: Callable[[bytes], str | None], seconds: float
) -> tuple[bytes, str]:
    """The simplest bytes that were found to fail in the same way within this time, and how."""
    failed = {data: message}
    best = data
    until = time.monotonic() + seconds

    @hypothesis.settings(
        database=InMemoryExampleDatabase(),
        phases=(hypothesis.Phase.reuse, hypothesis.Phase.shrink),
        deadline=None,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(TAPES)
    def test(tape: bytes) -> None:
        nonlocal best
        if tape not in failed and time.monotonic() < until:
            found = message_of(tape)
            if found is not None and kind_of(found) == kind_of(message):
                failed[tape] = found
        if tape in failed:
            best = min(best, tape)
            raise Failed

    for run in (lambda: test.hypothesis.fuzz_one_input(data), test):
        with contextlib.suppress(Failed):
            run()
    return best, failed[best]
