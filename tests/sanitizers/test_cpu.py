"""The CPU libraries under AddressSanitizer with UndefinedBehaviorSanitizer, and ThreadSanitizer:
every operator, threads that do everything at once, and planted mistakes, which are found."""

import re
import sys

import pytest
from paths import TESTS, path_of

from sanitizers.compiler import Mistake, run, run_tests
from sanitizers.cpu import build

SANITIZERS = pytest.mark.parametrize("sanitizer", ["address", "thread"])

# Files of tests in which every operator runs forward and backward, on every kernel, in every type
# and layout.
NAMES = (
    *("values", "gradients", "every_kernel", "random_problems", "errors"),
    *("resample", "resample_kernels", "interpolate", "parts"),
    *("reorder_bits", "reorder_kernels", "reorder_packs", "fake_reorder", "formats"),
    *("conv_kernels", "conv_epilogue", "conv_fused_backward", "conv_lanes", "conv_brgemm"),
    *("conv_activations", "conv_packed", "quantized_convolution"),
)
# Races depend on types no more than on values: float32, and what has kernels of its own.
THREADED_NAMES = (
    *("values", "gradients", "every_kernel", "random_problems", "parts", "reorder_bits"),
    *("fake_reorder", "conv", "conv_epilogue", "conv_brgemm", "quantized_convolution"),
)
SELECTIONS = {
    # Without problems that are only large: each access of a vector is a call here.
    "address": "not far_apart and not beyond and not parts_of and not exceed_the_caches"
    " and not test_memory[ and (not test_parts[ or rows-direct-NCX or signal-NXC)",
    "thread": "(matches_oracle and float32) or gradients_match_oracle or on_kernel or every_kernel"
    " or same_bits or threads_share or quantized_problem",
}
FILES = [("address", name) for name in NAMES] + [("thread", name) for name in THREADED_NAMES]

# A vector that begins within an allocation is an "unknown crash".
OVERRUN = r"AddressSanitizer: (heap-buffer-overflow|unknown-crash|SEGV)"
UNDEFINED = r"runtime error: "
RACE = r"ThreadSanitizer: data race"

BOXES, GEMM = "reorder/cpu/boxes.cpp", "conv/cpu/gemm/gemm.cpp"
WINOGRAD, ROWS = "conv/cpu/winograd/winograd.cpp", "resample/cpu/rows.cpp"
REFERENCE, REDUCE = "reorder/cpu/reference.cpp", "conv/cpu/shared/reduce.h"

# The mistake, the sanitizer, what it reports and which tests run: with whole vectors, as compilers
# do not instrument the masked ones of AVX-512. (tests/fuzz has guard pages, which need none.)
MISTAKES = {
    "reorder: tiles are one longer": (
        Mistake(BOXES, BOXES, "extent - first);", "extent - first + 1);"),
        *("address", OVERRUN, ("reorder_kernels", "")),
    ),
    "gemm: rows that are not there": (
        Mistake(GEMM, GEMM, "std::min(first + at_once, n)}", "first + at_once}"),
        *("address", OVERRUN, ("random_problems", "convolution-gemm")),
    ),
    "winograd: whole tiles at the end of a row": (
        Mistake(WINOGRAD, WINOGRAD, "std::min(neighbours * kTile, out_size[2] - at.x);",
                "neighbours * kTile;"),
        *("address", OVERRUN, ("conv_epilogue", "value_decides_alone and winograd")),
    ),
    "reorder: numbers too large for their type": (
        Mistake(REFERENCE, "core/numeric.h", "if (rounded >= above)", "if (rounded > 2 * above)"),
        *("address", UNDEFINED, ("reorder_bits", "")),
    ),
    "reorder: a tile is two threads'": (
        Mistake(BOXES, BOXES, "for (int64_t i = begin; i < end; i++) {",
                "for (int64_t i = begin - (begin > 0); i < end; i++) {"),
        *("thread", RACE, ("reorder_kernels", "")),
    ),
    "sums of chunks are two threads'": (
        Mistake(GEMM, REDUCE,
                "for (int64_t n, at = begin; at < end; at += n) {",
                "for (int64_t n, at = begin - (begin > 0); at < end; at += n) {"),
        *("thread", RACE, ("conv", "threads_share and gemm")),
    ),
}  # fmt: skip
UNLOCKED = Mistake(
    "resample/cpu/resample_cpu.cpp",
    "core/cache.h",
    "if (const Lock lock(mutex_, std::try_to_lock); lock) {",
    "{",
)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("sanitizer", "name"), FILES)
def test_operators(sanitizer, name):
    arguments = ("-k", SELECTIONS[sanitizer], "--problems=20", "--durations=3")
    done = run_tests(sanitizer, path_of(name), *arguments, **build(sanitizer))
    output = done.stderr[:10000] + done.stdout[-10000:]  # the first report says most
    assert done.returncode == 0, output
    assert re.search(r"\d+ passed", done.stdout), output
    print(done.stdout[done.stdout.index("= slowest") :])  # pytest -rP shows it


def run_busy_threads(sanitizer, mistake=None):
    environment = build(sanitizer, mistake)
    return run([sys.executable, TESTS / "sanitizers" / "busy_threads.py"], sanitizer, **environment)


@pytest.mark.sanitizer
@SANITIZERS
def test_busy_threads(sanitizer):
    done = run_busy_threads(sanitizer)
    assert done.returncode == 0, done.stderr[:10000] + done.stdout
    assert "same bits" in done.stdout


def test_busy_threads_without_sanitizer():
    done = run([sys.executable, TESTS / "sanitizers" / "busy_threads.py", "20"], None)
    assert done.returncode == 0, done.stderr
    assert "same bits" in done.stdout


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_found(name):
    mistake, sanitizer, report, (file, selection) = MISTAKES[name]
    arguments = (path_of(file), "-x", *(("-k", selection) if selection else ()))
    done = run_tests(sanitizer, *arguments, **build(sanitizer, mistake))
    assert done.returncode != 0, done.stdout
    assert re.search(report, done.stderr + done.stdout), (done.stderr + done.stdout)[-5000:]


@pytest.mark.sanitizer
def test_a_cache_without_its_lock_is_found():
    """Threads have to meet within a few instructions: on two cores they do not in every run."""
    for _ in range(5):
        done = run_busy_threads("thread", UNLOCKED)
        if done.returncode != 0:
            break
    assert done.returncode != 0 and re.search(RACE, done.stderr), done.stderr[-5000:]


def test_places_are_there():
    """Once each: the tests above take long, and so are not part of every run."""
    mistakes = [*(row[0] for row in MISTAKES.values()), UNLOCKED]
    assert {m.old: m.count for m in mistakes if m.count != 1} == {}
