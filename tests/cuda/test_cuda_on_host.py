"""The CUDA kernels, run on the CPU: see cuda_on_host/cuda_on_host.h.

First cuda_on_host itself: its kernels give the right results, and each planted mistake is found.
Then all operators: plainly, and under the sanitizers with `make sanitize`.
"""

import platform
import re

import pytest
from paths import CUDA_ON_HOST, path_of
from sanitizers.compiler import run, run_tests

from build import build, build_program

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="written for x86-64")

SANITIZERS = pytest.mark.parametrize("sanitizer", [None, "address", "thread"])


def run_self_test(sanitizer, *defines):
    return run([build_program(CUDA_ON_HOST / "self_test.cu", sanitizer, defines)], sanitizer)


@SANITIZERS
def test_self_test(sanitizer):
    done = run_self_test(sanitizer)
    assert done.returncode == 0, done.stdout + done.stderr


def test_offsets_of_64_bits():
    """In results that are too large to be allocated in a test."""
    done = run([build_program(CUDA_ON_HOST / "offsets.cu")], None)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_tensors_far_apart():
    """Whole kernels over tensors of few elements, more than 2^31 apart."""
    done = run([build_program(CUDA_ON_HOST / "far_apart.cu", kernels=True)], None)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mistake", "sanitizer", "report"),
    [
        ("OMIT_BARRIER", "thread", r"data race.*\n(.*\n){1,5}.*(transpose|reverse|static_sum)"),
        ("OMIT_SYNCWARP", "thread", r"data race.*\n(.*\n){1,5}.*warp_intrinsics"),
        ("OMIT_BARRIER", None, "wrong: transpose"),
        ("OVERRUN_STATIC", "address", r"self_test.*index 75 out of bounds(.*\n){1,5}.*static_sum"),
        ("OVERRUN_DYNAMIC", "address", r"heap-buffer-overflow(.*\n){1,5}.*reverse"),
        ("OVERRUN_GLOBAL", "address", r"heap-buffer-overflow(.*\n){1,5}.*Square"),
    ],
)
def test_planted_mistake_is_found(mistake, sanitizer, report):
    done = run_self_test(sanitizer, mistake)
    assert done.returncode != 0
    assert re.search(report, done.stdout + done.stderr), done.stdout + done.stderr


NAMES = (
    *("values", "gradients", "resample", "interpolate", "reorder_bits", "fake_reorder"),
    *("onnx", "formats", "docs", "conv_epilogue"),
    *("conv_dense", "cuda_depthwise", "cuda_quantized", "quantized_convolution"),
    *("resample_kernels", "reorder_packs", "reorder_padding", "every_kernel"),
)
# Every operator forward and backward, in every type. The sanitizers are slow, and neither addresses
# nor races depend on types; the tests of single kernels are many, so that some of each are run
# here. A GPU runs them all. Winograd's algorithm and words of four rows are the CPU's alone, and
# threads of the reference share nothing.
FEW_TYPES = (
    "not ((cuda_depthwise or resample_kernels or conv_epilogue) and (float16 or float64))"
    " and not (conv_dense and not bfloat16) and not (conv_epilogue and winograd)"
)
ADDRESSES = "matches_oracle or gradients_match_oracle or any_layout or support_table_is_true"
SELECTIONS = {
    None: f"({ADDRESSES} or empty_batch or operator_agrees or test_resample or test_interpolate"
    " or same_bits or test_onnx or test_reorder_packs or test_reorder_padding or dense_matches"
    " or every_kernel or large_layers or rounded_as_divisions or beyond_int32 or nan_becomes_zero"
    " or as_scales or no_channels)",
    "address": f"({ADDRESSES} or integers or exact_adjoint or test_reorder_packs"
    " or padding_of_views or padding_of_quantized"
    " or ((test_strides or test_tables) and float32) or (dense_matches and aligned)"
    " or (every_kernel and float32 and not reference))",
    "thread": "((matches_oracle and float32) or gradients_match_oracle or channels_last"
    " or tiles_of_views or padding_agrees or fake_quantization or (test_strides and float32)"
    " or (dense_matches and (aligned or split)) or (every_kernel and float32 and not reference)"
    " or (quantized_problem and nxc and torch.uint8))"
    " and not (conv_epilogue and reference or far_apart or beyond or depthwise_in_channels_last)",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "sanitizer",
    [None, *(pytest.param(name, marks=pytest.mark.sanitizer) for name in ("address", "thread"))],
)
def test_operators(sanitizer):
    selection = f"{SELECTIONS[sanitizer]} and {FEW_TYPES}"
    files = map(path_of, NAMES)
    library = str(build(sanitizer))
    done = run_tests(sanitizer, *files, "-k", selection, TORCH_DNNL_LIBRARY=library)
    # The first report says most.
    output = done.stderr[:10000] + done.stdout[-10000:]
    assert done.returncode == 0, output
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 100, output
