"""A short fixed part of `make fuzz`, what it has found before, and whether it finds anything."""

import json
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from paths import ROOT

from fuzz import campaign, modes, problems
from fuzz.operators import OPERATORS
from fuzz.shrink import TAPES, shrink

ROWS = Path(__file__).with_name("regressions.jsonl").read_text().splitlines()
IN_PROCESS = [mode for mode in modes.MODES if mode != "guarded"]


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tests/fuzz", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.parametrize("mode", IN_PROCESS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_some_problems(operator, mode):
    if not modes.applies(OPERATORS[operator], mode):
        return
    ran = 0

    @hypothesis.settings(
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(TAPES)
    def check(data):
        nonlocal ran
        problem = modes.make(OPERATORS[operator], mode, data)
        hypothesis.note(problem.row)
        ran += modes.check(mode, problem)

    check()
    assert ran >= 8


def test_some_guarded_problems():
    done = fuzz("--mode", "guarded", "--problems", "12", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = [line for line in done.stdout.splitlines() if line.startswith("all ")]
    assert int(total.split()[1]) == 12 * len(OPERATORS)


@pytest.mark.parametrize("row", ROWS)
def test_what_was_found_before(row):
    problem = problems.problem_of(row)
    assert problem.row == row
    ran = [modes.check(mode, problem) for mode in IN_PROCESS if modes.suits(problem, mode)]
    assert ran and all(ran)


def test_what_was_found_before_guarded():
    done = fuzz("--mode", "guarded", "--rows", "tests/fuzz/regressions.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_say_everything():
    for operator in OPERATORS.values():
        for mode in modes.MODES:
            for index in range(20):
                problem = modes.number(operator, mode, 3, index)
                assert problems.problem_of(problem.row) == problem


def test_a_failure_is_made_simpler():
    """That four of sixteen bytes are large, say: the others become 0, and these as small as may
    be."""

    def message_of(data):
        large = sum(byte > 100 for byte in data[:16]) >= 4
        return "AssertionError: four are large" if large else None

    data = problems.tape_of("any", 0, 1)
    assert message_of(data)
    simpler, message = shrink(data, message_of(data), message_of, seconds=60)
    assert message == "AssertionError: four are large"
    assert sorted(simpler)[-5:] == [0, 101, 101, 101, 101]


ACCESSES = {
    # Of eight bytes of float32 and sixteen of scratch memory.
    "read behind": ("ctypes.string_at(given + 8, 1)", "SIGSEGV", "a read 0 bytes behind"),
    "write behind": ("ctypes.memset(given + 8, 0, 1)", "SIGSEGV", "a write 0 bytes behind"),
    "read before": ("ctypes.string_at(first - 3, 1)", "SIGSEGV", "a read 3 bytes before"),
    "beside": ("ctypes.memset(scratch.data_ptr() + 16, 0, 1); del scratch", "SIGABRT", "beside"),
    "after free": ("p = scratch.data_ptr(); del scratch; ctypes.string_at(p, 1)", "SIGSEGV", ""),
}


@pytest.mark.parametrize("access", ACCESSES)
def test_guards_find_an_access(access):
    """Where tensors and scratch memory of operators end."""
    code, name, said = ACCESSES[access]
    program = f"""
import ctypes, torch
from fuzz import guard, problems
spec = problems.TensorSpec((2,))
given = spec.make(guard.Memory(guard.AT_END)).data_ptr()
first = spec.make(guard.Memory(guard.AT_BEGIN)).data_ptr()
with guard.guarding(guard.AT_END):
    scratch = torch.empty(16, dtype=torch.uint8)
assert scratch.data_ptr() % 64 == 0 and (scratch == 255).all()
{code}
"""
    process = campaign.start(
        ["-c", program], None, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    _, text = process.communicate(timeout=300)
    assert process.returncode == -{"SIGSEGV": 11, "SIGABRT": 6}[name], text
    assert f"guard: {said}" in text or said in text.split("guard: ")[-1], text
    assert "guard: " in text


def test_guards_are_around_what_operators_allocate():
    """The result and the scratch memory of a convolution, and the tables of a resize."""
    program = """
import torch, torch_dnnl
from fuzz import guard
src, weights = torch.randn(1, 32, 9, 9), torch.randn(32, 32, 3, 3)
for call in (
    lambda: torch.ops.torch_dnnl.convolution(src, weights, data_format="NCX", weights_format="OIX"),
    lambda: torch.ops.torch_dnnl.resample(src, [13, 7], mode="cubic"),
):
    before = guard.count()
    with guard.guarding(guard.AT_END):
        call()
    assert guard.count() >= before + 2, guard.count() - before
"""
    process = campaign.start(["-c", program], None, stderr=subprocess.PIPE, cwd=ROOT)
    _, text = process.communicate(timeout=300)
    assert process.returncode == 0, text


# Tags of twelve dimensions crash the operator.
CRASH = """
import ctypes, runpy, sys
from fuzz.problems import Operator
run = Operator.run
def crash(self, call):
    return ctypes.string_at(0) if "k" in call["tag"].lower() else run(self, call)
Operator.run = crash
"""


def test_a_crash_is_found(monkeypatch):
    """What a process was at when it crashed is run again, and simpler problems, each in a process;
    and then the campaign goes on."""
    start = campaign.start

    def start_with_crash(arguments, library, **streams):
        module, *rest = arguments[1:]
        program = f"{CRASH}sys.argv = ['', *{rest}]\nrunpy.run_module({module!r}, {{}}, '__main__')"
        return start(["-c", program], library, **streams)

    monkeypatch.setattr(campaign, "start", start_with_crash)
    monkeypatch.setattr(campaign, "SECONDS_TO_SHRINK", 2.0)
    cell = campaign.Cell("parse_format", "values")
    (failure,) = campaign.run([cell], 0, None, 1, problems=6, seconds=None)
    assert failure.message.startswith("SIGSEGV") and cell.problems == 6 and cell.index == 7
    assert "k" in json.loads(failure.row)["attributes"]["tag"].lower()
