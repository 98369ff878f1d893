"""Mistakes planted in every family of CUDA kernels are found when the kernels run on the CPU.

Each row changes one place: a barrier or a wait is left out, or an index goes one too far. The
source that has it is compiled again, and a few tests of the family must then fail, for the reason
the row names: a wrong result, or a sanitizer's report about that kernel.
"""

import platform
import re

import pytest
from paths import CUDA_ON_HOST, path_of
from sanitizers.compiler import Mistake, run, run_tests

from build import build, build_program

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="written for x86-64")

WRONG = r"AssertionError"
OVERRUN = r"AddressSanitizer: (heap-buffer-overflow|SEGV)|runtime error: index"
MISALIGNED = r"runtime error: .*misaligned address"
RACE = r"ThreadSanitizer: data race(.*\n){1,12}.*"  # and the file

WINDOW, SUM_ROWS = "resample/cuda/sliding_window.cu", "resample/cuda/sum_rows.cu"
PIXELS, PACKS = "resample/cuda/sum_pixels.cu", "reorder/cuda/straight.cu"
COLUMNS, REGULAR = "resample/cuda/kernel_arguments.h", "resample/cuda/regular_columns.h"
WINDOWS = "resample/cuda/sum_windows.cu"
CONVERTED, QUOTIENTS = "reorder/cuda/converted_rows.cu", "reorder/cuda/quotients.h"
TILES, FAKE = "reorder/cuda/transpose.cu", "reorder/cuda/fake_reorder.cu"
DENSE, DENSE_KERNELS = "conv/cuda/dense/bfloat16.cu", "conv/cuda/dense/kernels.h"
NXC, NCX = "conv/cuda/depthwise/nxc.cu", "conv/cuda/depthwise/ncx.cu"
WEIGHTS = "conv/cuda/depthwise/weights_gradient.cu"
GATHER = "conv/cuda/shared/gather.h"
PLACES, PACKED = "conv/cuda/dense/dense.cu", "conv/cuda/shared/pixels.h"
QUANTIZED = "conv/cuda/quantized/dense.cu"
WORDS, QUANTIZED_END = "conv/cuda/quantized/depthwise.cu", "conv/cuda/quantized/epilogue.h"
RESAMPLE_TESTS = ("resample_kernels", "float32 and (x2 or x5 or x0.5)")
PACK_TESTS = ("reorder_packs", "packs_of_every_type")
ROW_TESTS = ("reorder_packs", "packs_of_rows")
TILE_TESTS = ("reorder_packs", "tiles_of_images and 37")
PADDING_TESTS = ("reorder_padding", "larger and 18")
FAKE_TESTS = ("reorder_packs", "packs_of_fake")
DENSE_TESTS = ("conv_dense", "bfloat16 and dense_matches and (aligned or ends or split)")
DEPTHWISE_TESTS = ("cuda_depthwise", "float32 and problem and 3x3")
QUANTIZED_TESTS = ("cuda_quantized", "quantized_problem and uint8 and (3x3 or odd or two-tiles)")


def mistake_in(file: str, right: str, wrong: str) -> Mistake:
    """In the file that is compiled, not in a header."""
    return Mistake(file, file, right, wrong)


def one_worker_more(source: str, file: str) -> Mistake:
    test = "if (worker {} args.workers)\n    return;\n"
    return Mistake(source, file, test.format(">="), test.format(">"))


# What is left out or goes too far: the mistake, the sanitizer, what must be reported, the tests.
MISTAKES = {
    "resample, sliding window: one worker more": (
        one_worker_more(WINDOW, COLUMNS),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "resample, sliding window: the column behind the row": (
        Mistake(WINDOW, REGULAR, "first + kOwn < args.src_row", "first + kOwn <= args.src_row"),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "resample, sums of windows: one worker more": (
        one_worker_more(WINDOWS, COLUMNS),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "resample, sums of windows: the column behind the row": (
        Mistake(WINDOWS, REGULAR, "first + kOwn < args.src_row", "first + kOwn <= args.src_row"),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "resample, copy: one worker more": (
        one_worker_more(WINDOW, WINDOW),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "resample, sums of pixels: one worker more": (
        one_worker_more(PIXELS, COLUMNS),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "resample, sums of rows: without the barrier": (
        mistake_in(SUM_ROWS, "    __syncthreads();\n", ""),
        *("thread", RACE + "sum_rows.cu", RESAMPLE_TESTS),
    ),
    "resample, sums of rows: one element more in a tile": (
        mistake_in(
            SUM_ROWS,
            "args.elements_per_tile, args.row);",
            "args.elements_per_tile, args.row) + 1;",
        ),
        *("address", OVERRUN, RESAMPLE_TESTS),
    ),
    "reorder, packs: one pack more": (
        mistake_in(PACKS, "if (index >= box.packs)", "if (index > box.packs)"),
        *("address", OVERRUN, PACK_TESTS),
    ),
    "reorder, packs: wherever the tensor begins": (
        Mistake(PACKS, "reorder/cuda/pack.h", "    add(data);\n", ""),
        *("address", MISALIGNED, ("reorder_packs", "any_alignment")),
    ),
    "reorder, converted rows: wherever the tensor begins": (
        Mistake(CONVERTED, "reorder/cuda/pack.h", "    add(data);\n", ""),
        *("address", MISALIGNED, ("reorder_packs", "any_alignment")),
    ),
    "reorder, converted rows: one element more at the end": (
        mistake_in(CONVERTED, "if (e < count)\n          to[", "if (e <= count)\n          to["),
        *("address", OVERRUN, ROW_TESTS),
    ),
    "reorder, converted rows: large quotients are not found": (
        Mistake(CONVERTED, QUOTIENTS, "most <= size_of(kMost) &&", ""),
        *(None, WRONG, ROW_TESTS),
    ),
    "reorder, tiles: without the barrier": (
        mistake_in(TILES, "  __syncthreads();\n", ""),
        *("thread", RACE + "transpose.cu", TILE_TESTS),
    ),
    "reorder, tiles: one element more than the box has": (
        mistake_in(TILES, "if (!inside || first >= left_[0])", "if (!inside || first > left_[0])"),
        *("address", OVERRUN, TILE_TESTS),
    ),
    "reorder, tiles: padding is left as it was": (
        mistake_in(TILES, "return tile.zero_padding();", "return;"),
        *(None, WRONG, PADDING_TESTS),
    ),
    "reorder, tiles: also those that the source does not have": (
        mistake_in(TILES, "  if (tile.is_empty())\n    return;\n", ""),
        *(None, WRONG, PADDING_TESTS),
    ),
    "fake_reorder: one pack more": (
        mistake_in(FAKE, "if (pack < plan.box.packs)", "if (pack <= plan.box.packs)"),
        *("address", OVERRUN, FAKE_TESTS),
    ),
    "convolution, dense: without the barrier between stages": (
        Mistake(
            DENSE,
            GATHER,
            "    __syncthreads(); // this slot is full",
            "    // this slot is full",
        ),
        *("thread", RACE + "conv/cuda/dense/", DENSE_TESTS),
    ),
    "convolution, dense: waits for one copy less": (
        Mistake(DENSE, GATHER, "copies.wait<kStages - 2>();", "copies.wait<kStages - 1>();"),
        *(None, WRONG, DENSE_TESTS),
    ),
    "convolution, dense: the column behind the image": (
        Mistake(
            DENSE,
            GATHER,
            "is_within(b.w + shift.w, size[2])",
            "is_within(b.w + shift.w, size[2] + 1)",
        ),
        *(None, WRONG, DENSE_TESTS),
    ),
    "convolution, dense: one channel of the weights more": (
        Mistake(
            DENSE,
            GATHER,
            "static_cast<int>(row) < channels_left}",
            "static_cast<int>(row) <= channels_left}",
        ),
        *("address", OVERRUN, DENSE_TESTS),
    ),
    "convolution, dense: whole chunks where channels end": (
        Mistake(DENSE, DENSE_KERNELS, "min(kChunk<T>, channels_left - column)", "int(kChunk<T>)"),
        *("address", OVERRUN, DENSE_TESTS),
    ),
    "convolution, dense: one column of the weights gradient more": (
        Mistake(
            DENSE,
            DENSE_KERNELS,
            "if (m < columns && n < p.straight.channels)",
            "if (m <= columns && n < p.straight.channels)",
        ),
        *(None, WRONG, DENSE_TESTS),
    ),
    "convolution, dense: a part of split sums is left out": (
        Mistake(
            DENSE,
            "conv/cuda/dense/run.h",
            "split < p.splits; split++) {",
            "split + 1 < p.splits; split++) {",
        ),
        *(None, WRONG, DENSE_TESTS),
    ),
    "convolution, dense: one channel of a packed image more": (
        Mistake(PLACES, PACKED, "first + e < image.channels", "first + e <= image.channels"),
        *("address", OVERRUN, DENSE_TESTS),
    ),
    "convolution, dense: packed groups in one place": (
        Mistake(PLACES, PACKED, "(to * groups + group) * chunks", "(to * groups) * chunks"),
        *(None, WRONG, DENSE_TESTS),
    ),
    "convolution, quantized, dense: without the barrier before sums are read": (
        mistake_in(
            QUANTIZED,
            """, m0, rows);
  __syncthreads();
  const QuantizedSteps""",
            """, m0, rows);
  const QuantizedSteps""",
        ),
        *("thread", RACE + "conv/cuda/quantized/", QUANTIZED_TESTS),
    ),
    "convolution, quantized, dense: pads are zeros": (
        Mistake(QUANTIZED, GATHER, "if (pads != nullptr)", "if (pads == first)"),
        *(None, WRONG, QUANTIZED_TESTS),
    ),
    "convolution, quantized, dense: a lane's weights are left out of the excess": (
        mistake_in(
            QUANTIZED, "lanes = 16; lanes > 0; lanes /= 2", "lanes = 16; lanes > 1; lanes /= 2"
        ),
        *(None, WRONG, QUANTIZED_TESTS),
    ),
    "convolution, quantized, dense: one channel of the inputs more": (
        Mistake(QUANTIZED, PACKED, "first + e < image.channels ?", "first + e <= image.channels ?"),
        *("address", OVERRUN, QUANTIZED_TESTS),
    ),
    "convolution, quantized, depthwise: the pixel behind the row": (
        mistake_in(WORDS, "* pixel_columns) < width", "* pixel_columns) <= width"),
        *(None, WRONG, QUANTIZED_TESTS),
    ),
    "convolution, quantized: one output more of a run": (
        Mistake(
            QUANTIZED,
            QUANTIZED_END,
            "if (e < count)\n          to[dst",
            "if (e <= count)\n          to[dst",
        ),
        *("address", OVERRUN, QUANTIZED_TESTS),
    ),
    "convolution, NXC: without the barrier": (
        mistake_in(
            NXC,
            """begin, width, shared);
        __syncthreads();""",
            "begin, width, shared);",
        ),
        *("thread", RACE + "depthwise/nxc.cu", DEPTHWISE_TESTS),
    ),
    "convolution, NXC: the pixel behind the row": (
        mistake_in(NXC, "(position) < static_cast", "(position) <= static_cast"),
        *(None, WRONG, DEPTHWISE_TESTS),
    ),
    "convolution, NCX: without the barrier": (
        mistake_in(
            NCX,
            """first_row), tile);
      __syncthreads();""",
            "first_row), tile);",
        ),
        *("thread", RACE + "depthwise/ncx.cu", DEPTHWISE_TESTS),
    ),
    "convolution, NCX: the row below the image": (
        mistake_in(NCX, "(origin + i) >= static_cast", "(origin + i) > static_cast"),
        *(None, WRONG, DEPTHWISE_TESTS),
    ),
    "convolution, weights: without the barrier": (
        mistake_in(
            WEIGHTS,
            """= sum;
    __syncthreads();""",
            "= sum;",
        ),
        *("thread", RACE + "depthwise/weights_gradient.cu", DEPTHWISE_TESTS),
    ),
    "convolution, weights: tiles are read while they are filled": (
        mistake_in(WEIGHTS, "    __syncthreads();\n    float found", "    float found"),
        *("thread", RACE + "depthwise/weights_gradient.cu", DEPTHWISE_TESTS),
    ),
    "convolution, weights: one column more of the image": (
        mistake_in(
            WEIGHTS,
            "min(bottom, plane.height) && w >= 0 && w < plane.width)",
            "min(bottom, plane.height) && w >= 0 && w <= plane.width)",
        ),
        *(None, WRONG, DEPTHWISE_TESTS),
    ),
    "convolution, weights: what comes before the tile in its first vectors": (
        mistake_in(WEIGHTS, "(before + part * kTaps", "(part * kTaps"),
        *(None, WRONG, DEPTHWISE_TESTS),
    ),
    "convolution, weights: strips lack their last tap": (
        mistake_in(
            WEIGHTS,
            "k < U::kTaps; k++)\n          sums[row",
            "k < U::kTaps - 1; k++)\n          sums[row",
        ),
        *(None, WRONG, DEPTHWISE_TESTS),
    ),
    "convolution, weights: one slice more": (
        mistake_in(WEIGHTS, "s < slices; s += kAdders", "s <= slices; s += kAdders"),
        *("address", OVERRUN, DEPTHWISE_TESTS),
    ),
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_found(name):
    mistake, sanitizer, report, (file, selection) = MISTAKES[name]
    library = str(build(sanitizer, mistake))
    arguments = (path_of(file), "-x", "-k", selection)
    done = run_tests(sanitizer, *arguments, TORCH_DNNL_LIBRARY=library)
    assert done.returncode != 0, done.stdout
    assert re.search(report, done.stderr + done.stdout), (done.stderr + done.stdout)[-5000:]


# An offset that is cut to 32 bits: the mistake, and which tensors far apart are then wrong.
CUT_OFFSETS = {
    "resample, from row to row": (
        Mistake(
            WINDOW,
            COLUMNS,
            "dst += args.dst_stride[3];",
            "dst += args.dst_stride[3] & 0x7fffffff;",
        ),
        "resample, window",
    ),
    "resample, sliding window": (
        Mistake(
            WINDOW,
            COLUMNS,
            "src + row * args.src_stride[3];",
            "src + static_cast<int>(row * args.src_stride[3]);",
        ),
        "resample, window",
    ),
    "reorder, tiles": (
        Mistake(
            TILES,
            "reorder/cuda/pack.h",
            "at[kDst] += count * stride[kDst];",
            "at[kDst] += static_cast<int>(count * stride[kDst]);",
        ),
        "reorder, tiles",
    ),
    "fake_reorder": (
        mistake_in(FAKE, "(args.dst + position", "(args.dst + (int)position"),
        "fake_reorder",
    ),
    "convolution, NXC": (
        mistake_in(NXC, "int64_t offset = run.offset", "int offset = run.offset"),
        "depthwise, channels innermost",
    ),
    "convolution, NCX": (
        mistake_in(NCX, "int64_t offset = output.offset", "int offset = output.offset"),
        "depthwise, rows innermost",
    ),
    "convolution, weights": (
        mistake_in(WEIGHTS, "[o * stride[0]", "[int(o * stride[0])"),
        "depthwise, channels innermost",
    ),
    "convolution, dense": (
        Mistake(
            "conv/cuda/dense/float32.cu",
            DENSE_KERNELS,
            "        rows[row].straight.offset,\n",
            "        static_cast<int>(rows[row].straight.offset),\n",
        ),
        "dense, channels innermost",
    ),
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", CUT_OFFSETS)
def test_offset_of_32_bits_is_found(name):
    mistake, wrong = CUT_OFFSETS[name]
    source = CUDA_ON_HOST / "far_apart.cu"
    done = run([build_program(source, kernels=True, mistake=mistake)], None)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"{wrong}: [1-9]\d* of", done.stdout), done.stdout


def test_places_are_there():
    """Once each. The tests above take half an hour, and so are not part of every run."""
    mistakes = [row[0] for row in (*MISTAKES.values(), *CUT_OFFSETS.values())]
    counts = {mistake.old: mistake.count for mistake in mistakes}
    assert {text: count for text, count in counts.items() if count != 1} == {}
    assert {mistake.source for mistake in mistakes if not mistake.source.endswith(".cu")} == set()
