"""A short fixed part of `make fuzz`, what it has found before, and whether it finds anything."""

import json
import signal
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
    """In a process of their own, as in the campaign."""
    cells = [campaign.Cell(operator, "guarded") for operator in OPERATORS]
    failures = campaign.run(cells, 0, None, 1, problems=12, seconds=None)
    assert not failures, failures
    assert {cell.problems for cell in cells} == {12}
    assert str(sum(cell.problems for cell in cells)) in campaign.table(cells).splitlines()[-1]


@pytest.mark.parametrize("row", ROWS)
def test_what_was_found_before(row):
    problem = problems.problem_of(row)
    assert problem.row == row
    ran = [modes.check(mode, problem) for mode in IN_PROCESS if modes.suits(problem, mode)]
    assert ran and all(ran)


def test_what_was_found_before_guarded():
    command = ["tests/fuzz", "--mode", "guarded", "--rows", "tests/fuzz/regressions.jsonl"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " problems again, 0 failed" in done.stdout


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


# Of 8 bytes of a tensor that ends at a guard, of one that begins at a guard, and of 16 bytes that
# an operator would allocate: the access, the signal, and what is said.
ACCESSES = [
    ("ctypes.string_at(ends + 8, 1)", signal.SIGSEGV, "a read 0 bytes behind an allocation of 8"),
    ("ctypes.memset(ends + 8, 0, 1)", signal.SIGSEGV, "a write 0 bytes behind an allocation of 8"),
    ("ctypes.string_at(begins - 3, 1)", signal.SIGSEGV, "a read 3 bytes before an allocation of 8"),
    ("ctypes.memset(scratch.data_ptr() + 16, 0, 1); del scratch", signal.SIGABRT, "bytes beside"),
    ("p = scratch.data_ptr(); del scratch; ctypes.string_at(p)", signal.SIGSEGV, "that was freed"),
    ("ctypes.string_at(ends + 4, 4); ctypes.memset(begins, 0, 8); del scratch", 0, ""),
]
GUARDS = """
import ctypes, json, os, sys, torch, torch_dnnl
from fuzz import guard, problems
spec = problems.TensorSpec((2,))
ends = spec.make(guard.Memory(guard.AT_END)).data_ptr()
begins = spec.make(guard.Memory(guard.AT_BEGIN)).data_ptr()
results = []
for access in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(writer, 2)
        with guard.guarding(guard.AT_END):
            scratch = torch.empty(16, dtype=torch.uint8)
        assert scratch.data_ptr() % 64 == 0 and (scratch == 255).all()
        exec(access)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    results.append((os.wait()[1] & 0x7F, text))
src, weights = torch.randn(1, 32, 9, 9), torch.randn(32, 32, 3, 3)
formats = {"data_format": "NCX", "weights_format": "OIX"}
counts = []
for call in (
    lambda: torch.ops.torch_dnnl.convolution(src, weights, **formats),
    lambda: torch.ops.torch_dnnl.resample(src, [13, 7], mode="cubic"),
):
    before = guard.count()
    with guard.guarding(guard.AT_END):
        call()
    counts.append(guard.count() - before)
print(json.dumps([results, counts]))
"""


def test_guards_find_accesses():
    """Of what a call is given and of what an operator allocates; and they are there: around the
    result and the scratch memory of a convolution, and the tables of a resize."""
    pipe = subprocess.PIPE
    arguments = ["-c", GUARDS, json.dumps([access for access, *_ in ACCESSES])]
    process = campaign.start(arguments, None, stdout=pipe, stderr=pipe, cwd=ROOT)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    results, counts = json.loads(output)
    for (access, number, said), (status, text) in zip(ACCESSES, results, strict=True):
        assert status == number and said in text, (access, status, text)
    assert min(counts) >= 2, counts


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
