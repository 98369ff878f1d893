"""The cases of cuda_limits.py: paths through kernels, and what they are compared with."""

from dataclasses import dataclass


@dataclass
class Memory:
    """In the time of a byte from an H200's memory, 4.8 TB/s, it issues 6 instructions of threads
    (132 multiprocessors, 128 lanes, 1.7 GHz)."""

    bytes: float

    def share(self, instructions: float) -> float:
        return min(1.0, 6 * self.bytes / instructions)

    def __str__(self) -> str:
        return f"{self.bytes:.3g} bytes"


@dataclass
class MatrixUnits:
    """One of an H200's takes 4 cycles for an instruction of 16x8x16 (bfloat16) or 16x8x32 (int8),
    in which 4 are issued. `mma.sync` keeps it busy for 5/8 of the time at most."""

    products: int  # instructions

    def share(self, instructions: float) -> float:
        return min(5 / 8, 4 * self.products / instructions)

    def __str__(self) -> str:
        return f"{self.products} matrix instructions"


@dataclass
class Case:
    """`taken` is what cuda_path.py calls so. The instructions are those of the whole path, or of
    some turns more of the loop with the text `repeated`, divided by `outputs`."""

    label: str
    source: str
    kernel: str
    taken: dict[str, str]
    limit: Memory | MatrixUnits
    outputs: float = 1
    before: tuple[float, int] | None = None  # instructions and warps
    repeated: str = ""
    enter: str = ""  # T: the loop is entered by a branch
    turns: int = 1
    threads: int = 256
    shared: int = 0  # bytes of a block


STRIP = {"y < at.end": "16", "has_empty_rows": "T"}  # rows of dst
SUMS = {"planes.is_copy": "T", "first += kAtOnce": "4", "r < rows; r++": "4", "has_empty_rows": "T"}
DEPTHWISE = {"if (!transposed)": "T", "t.vector == kWidest": "T", "residual == nullptr": "T"}
END_OF_ROW = {"has_more()": "T", "if (vectors)": "T"}
RUNS = {"if (!staged)": "NT", "spacing == 1": "T", "out_channels == 1": "T"}
WHOLE_PACKS = {"a + 1 < axes": "T", "count == n": "T", "count < Pack::kElements": "T"}
CONVERTED = {"a < axes": "T", "step >= width": "T", "has_tensors && operand": "T"}
CONVERTED |= {"p.operand[array].present": "T", "i < S::kStretches": "2", "is_quick": "T"}
CASES = [
    Case(
        "Resample, nearest x2, NCHW",
        "resample/cuda/sliding_window",
        r"copy_kernel<unsigned short, 8, false, 3072",
        {"held != rows.first": "*NT", **STRIP},
        Memory(2.5),
        outputs=16 * 8,
        before=(11.5, 32),
    ),
    Case(
        "Resample, bilinear x2, NCHW",
        "resample/cuda/sliding_window",
        r"BFloat16, .*RegularColumns<float, 2, 1, 2, 8>, .*3072",
        {"held_[slot] != row": "*TNTT", **STRIP},
        Memory(2.5),
        outputs=16 * 8,
        before=(23.3, 24),
    ),
    Case(
        "Resample, bilinear x0.5, NCHW",
        "resample/cuda/sum_windows",
        r"BFloat16, .*RegularColumns<float, 1, 2, 2, 8>, .*3072",
        {"next_++": "2", **STRIP},
        Memory(10),
        outputs=16 * 8,
        before=(53.8, 16),
    ),
    Case(
        "Resample, gradient of bilinear x2, NCHW",
        "resample/cuda/sum_rows",
        r"BFloat16, 2, .*FewTaps<float, 4>, 3072",
        {"next_++": "4,2", **SUMS},
        Memory(10),
        outputs=16 * 4,
        before=(102.6, 16),
        threads=128,
        shared=34816,
    ),
    Case(
        "Resample, bicubic to a third with `antialias`, NCHW",
        "resample/cuda/sum_rows",
        r"BFloat16, 4, .*ManyTaps<float>, 3072",
        {"next_++": "12,3", "element += blockDim.x": "2", "left -= kGroup": "3", **SUMS},
        Memory(20),
        outputs=16 * 2,
        before=(540, 20),
        threads=128,
        shared=34816 + 16 * 1024,
    ),
    Case(
        "Resample, bilinear x0.5 with `antialias`, NHWC",
        "resample/cuda/sum_pixels",
        r"BFloat16, .*Columns<float, 4, 8, true>, .*RunningSums<float, 2, 8>, 3072",
        {"next_++": "4,2", **STRIP},
        Memory(10),
        outputs=16 * 8,
        before=(67.2, 20),
        threads=128,
    ),
    Case(
        "Resample, bicubic x0.5 with `antialias`, NHWC",
        "resample/cuda/sum_pixels",
        r"BFloat16, .*Columns<float, 8, 8, true>, .*RunningSums<float, 4, 8>, 3072",
        {"next_++": "8,2", **STRIP},
        Memory(10),
        outputs=16 * 8,
        before=(127.5, 16),
        threads=128,
    ),
    Case(
        "Reorder, rows that are moved",
        "reorder/cuda/straight",
        r"MovedPack<unsigned char, 16>",
        {"int next = 1": "4", "k < kPacks": "4", **WHOLE_PACKS},
        Memory(4),
        outputs=4 * 8,
        before=(13.8, 64),
    ),
    Case(
        "Reorder, to float32",
        "reorder/cuda/converted_rows",
        r"Sizes<2, 4, false>",
        {"PROVIDES_SM_90": "T", "switch (type)": "T", ".present": "T", **CONVERTED},
        Memory(6),
        outputs=32,
        before=(40, 40),
    ),
    Case(
        "Reorder, float32 to int8 with a scale and a zero point",
        "reorder/cuda/converted_rows",
        r"Sizes<4, 1, false>",
        {"int left": "T", "switch (type)": "*NNN", **CONVERTED},
        Memory(5),
        outputs=32,
        before=(59, 40),
    ),
    Case(
        "Reorder, NCHW to NHWC",
        "reorder/cuda/transpose",
        r"MovedPack<unsigned short, 8>",
        {
            "if (a < box.tiled)": "*NNTT",
            "return a + 1 < box.axes": "*NNNTT",
            "sizes>{}), true": "*NNNTN",
            "a < box_.tiled && ": "*NTTT",
            "v[k].bytes == width": "*NNNNTTTT",
            "if (a < tiled)": "*NTT",
            "i < plan.box.packs": "4",
            "count == n": "T",
        },
        Memory(4),
        outputs=4 * 8,
        before=(23.4, 40),
        shared=16640,
    ),
    Case(
        "Fake quantization to int8 with one scale",
        "reorder/cuda/fake_reorder",
        r"quantize_kernel<c10::BFloat16, float",
        {
            **WHOLE_PACKS,
            "kDstScale].present": "N",
            ".present": "T",
            "operand.data == nullptr": "T",
            "kDstScale].data == nullptr": "T",
            "is_quick": "T",
            "step_gradient": "T",
            "has_tensors": "T",
        },
        Memory(4 + 1 / 8),
        outputs=2 * 8,
        before=(48.7, 24),
    ),
    Case(
        "Dense convolution, NHWC, tiles of 128x128, a stage",
        "conv/cuda/dense/bfloat16",
        r"dense_gather_kernel<.*BFloat16, .*Shape<128, 128, 2>, .*false>, true>",
        {},
        MatrixUnits(64),
        repeated="for (Count block = 0; block < blocks",
        before=(454, 8),
        threads=128,
        shared=69632,
    ),
    Case(
        "The same, its weights",
        "conv/cuda/dense/bfloat16",
        r"dense_weights_kernel<.*BFloat16, .*Shape<128, 128, 2>",
        {"quotient = index >> 32": "T", "pixel % kDenseThreads": "*NTTT"},
        MatrixUnits(64),
        outputs=4,
        turns=4,
        repeated="for (Count block = 0; block < blocks",
        enter="T",
        before=(405, 8),
        threads=128,
        shared=81920,
    ),
    Case(
        "The same of int8",
        "conv/cuda/quantized/dense",
        r"quantized_dense_kernel<signed char, .*Shape<128, 128, 2>",
        {},
        MatrixUnits(64),
        repeated="for (Count block = 0; block < blocks",
        enter="T",
        threads=128,
        shared=69632,
    ),
    Case(
        "Images packed for dense convolution",
        "conv/cuda/dense/dense",
        r"for_each_element_kernel<.*PackPixels<c10::BFloat16",
        {"a < axes - 1": "T"},
        Memory(4),
        outputs=8,
    ),
    Case(
        "What follows cuDNN: bias and ReLU",
        "conv/cuda/complete",
        r"for_each_element_kernel<.*CompleteRun<c10::BFloat16, 8>",
        {"if (!same_strides)": "T"},
        Memory(4),
        outputs=8,
    ),
    Case(
        "Depthwise convolution, 3x3 of 112x112, NCHW",
        "conv/cuda/depthwise/ncx",
        r"BFloat16, .*RowTaps<3, 1, false",
        {**DEPTHWISE, **END_OF_ROW},
        Memory(4),
        outputs=16,
        before=(160, 32),
        threads=128,
        shared=11600,
    ),
    Case(
        "Depthwise convolution, 3x3, NHWC, 5 runs of 8 pixels",
        "conv/cuda/depthwise/nxc",
        r"BFloat16, 4, false, .*RowTaps<3, 1, false",
        {"uint32_t first": "5", "step < end; step++": "3", **RUNS, **DEPTHWISE, **END_OF_ROW},
        Memory(4),
        outputs=5 * 8 * 4,
        before=(62.9, 28),
        threads=128,
    ),
    Case(
        "Its gradient of weights, 3x3, NCHW, tiles of 64x64",
        "conv/cuda/depthwise/weights_gradient",
        r"BFloat16, .*Unit<3, 1, 1, 3>",
        {
            "digits.next": "T",
            "pixel(static_cast": "T",
            "vector == 1": "N",
            "vector == kWidest": "T",
            "first += kAtOnce": "*NTNNN",  # 66 and 64 rows: two turns and one
            "strip < strips; strip += t.strips": "2",
            "count >= kOutputs": "T",
        },
        Memory(4),
        outputs=64 * 64 / 256,
        repeated="for (int64_t index = slice * t.length",
        before=(3 * 213, 64),
        shared=38024,
    ),
    Case(
        "Depthwise convolution of int8, NHWC, a tap",
        "conv/cuda/quantized/depthwise",
        r"quantized_depthwise_kernel<signed char, true",
        {"e < kRun; e++": "*TN"},  # one word of channels a tap
        Memory(2 / 9),
        outputs=16,
        repeated="taps > 0; taps--",
    ),
]
