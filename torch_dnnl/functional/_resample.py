"""Resize: `interpolate`, with torch's contract, and `resample`, with every framework's.

Both spell their arguments for one operator, `torch_dnnl::resample`, which validates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_unary

from torch_dnnl._literals import Coordinates, DataFormat, Mode, NearestMode, TorchMode
from torch_dnnl.functional import _algorithm, _tracing
from torch_dnnl.functional._errors import check_factors, check_types, describe, in_words_of
from torch_dnnl.functional._quick import quick

_quick_resample = quick("resample")
_resample = torch.ops.torch_dnnl.resample.default
_chosen = _algorithm.resample

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_MODES = get_args(TorchMode)

_Attributes = tuple[str | float | bool, ...]


def _interpolate_attributes() -> dict[tuple[str, int, bool | None, bool], _Attributes]:
    """(mode, rank of the input, align_corners, antialias) -> attributes of the operator.

    The attributes are the operator's from `mode` on; the last ones keep their defaults. A
    combination that is not here is a bad call.
    """
    table: dict[tuple[str, int, bool | None, bool], _Attributes] = {}

    def antialiased(
        filter: str, cubic_coeff_a: float, align_corners: bool | None = None
    ) -> _Attributes:
        # ATen's antialias filters keep half-pixel centres under align_corners.
        coordinates = "torch_antialias_corners" if align_corners else "torch_linear"
        return (filter, coordinates, "round_prefer_ceil", True, cubic_coeff_a, True)

    for rank, linear in _LINEAR.items():
        table["nearest", rank, None, False] = ("nearest", "torch_nearest")
        table["nearest-exact", rank, None, False] = ("nearest", "torch_nearest_exact")
        table["area", rank, None, False] = ("area",)
        table[linear, rank, True, False] = ("linear", "align_corners")
        for align_corners in (None, False):
            table[linear, rank, align_corners, False] = ("linear", "torch_linear")
            table["lanczos", rank, align_corners, True] = antialiased("lanczos3", -0.75)
        for align_corners in (None, False, True):
            table[linear, rank, align_corners, True] = antialiased("linear", -0.75, align_corners)
            table["bicubic", rank, align_corners, True] = antialiased("cubic", -0.5, align_corners)
    table["bicubic", 4, True, False] = ("cubic", "align_corners")
    for align_corners in (None, False):
        table["bicubic", 4, align_corners, False] = ("cubic",)
    return table


_INTERPOLATE = _interpolate_attributes()

_COORDINATES = get_args(Coordinates)  # the operator has some more, for interpolate


def _scaled(sizes: Sequence[int], factors: Sequence[float]) -> list[int]:
    # An exported program with math.floor in it cannot be saved.
    to_int: Any = torch.sym_int
    # The plus refuses a str, of which a multiple is a longer str.
    return [to_int(size * +factor) for size, factor in zip(sizes, factors, strict=True)]


def _check_ints(sizes: Sequence[Any]) -> None:
    """A TypeError, explained by the caller, for what the schema would silently make an int of."""
    for n in sizes:
        if type(n) is not int and (isinstance(n, bool) or not hasattr(n, "__index__")):
            raise TypeError


def _nearest_as_aten(
    input: Tensor, sizes: Sequence[int] | None, factors: Sequence[float], mode: str
) -> tuple[Sequence[float], _Attributes]:
    """The factors and attributes of the kernel that ATen uses for a nearest mode.

    It has two for images and volumes, whose indices differ at some sizes, and one on CUDA.
    """
    attributes = _INTERPOLATE[mode, input.dim(), None, False]
    direct = ("nearest", f"{attributes[1]}_direct")
    # A program for every size has one rule.
    if input.is_cuda or torch.compiler.is_exporting() or _tracing.is_tracing():
        return factors, direct
    spatial = input.shape[2:]
    out = sizes or _scaled(spatial, factors)
    small = len(out) == 2 and _tracing.holds(out[0] + out[1] <= 128)
    if len(out) == 2 and not small and not _tracing.holds(out[0] + out[1] > 128):
        return factors, direct  # sizes that come from data: a program for every size, too
    channels_last = (1, *range(input.dim() - 1, 1, -1), 0)
    is_last = len(out) > 1 and input.shape[1] > 3 and _tracing.is_dense(input, channels_last)
    if not small and not is_last:
        return factors, attributes
    if factors and mode == "nearest":
        # This kernel ignores the factor of an axis that keeps or doubles its size.
        factors = [
            1.0 if o == i else 2.0 if o == 2 * i else f
            for i, o, f in zip(spatial, out, factors, strict=True)
        ]
    return factors, direct


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: TorchMode = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes the spatial dimensions of `input`, as `torch.nn.functional.interpolate` does.

    The same arguments, results and exception types as torch. It goes further in three places:
    `antialias` also takes 3-D and 5-D inputs, bfloat16 and float16; uint8 works in every mode and
    rounds to nearest; the gradient is deterministic on every device.

    Args:
        input: [N, C, W], [N, C, H, W] or [N, C, D, H, W]; float64, float32, bfloat16, float16 or
            uint8, in any memory format.
        size: output size in pixels, one for all spatial dimensions or one for each. Exactly one
            of `size` and `scale_factor` is given.
        scale_factor: output size as a multiple of the input's: floor(input size * factor).
        mode: "nearest" (default), "nearest-exact", "linear" (3-D), "bilinear" (4-D), "trilinear"
            (5-D), "bicubic" (4-D; with `antialias` 3-D to 5-D), "area", "lanczos" (with
            `antialias` only).
        align_corners: whether the centres of the corner pixels, instead of their outer corners,
            coincide (linear and cubic modes). Default: False.
        recompute_scale_factor: take the coordinates from the integer sizes instead of from
            `scale_factor`. Default: False.
        antialias: widen the filter when shrinking, as Pillow does (linear, cubic, lanczos).

    Returns:
        [N, C, *output size], of the input's type and memory format.

    Raises:
        ValueError: contradictory arguments, as in torch.
        TypeError: an argument of a wrong type.
        NotImplementedError: a mode that does not exist for the rank of the input.
        RuntimeError: sizes or values that cannot be computed with (an empty output, a factor that
            is not finite).

    Example:
        >>> image = torch.rand(1, 3, 32, 48)
        >>> interpolate(image, scale_factor=0.5, mode="bilinear", antialias=True).shape
        torch.Size([1, 3, 16, 24])

    Definition: `torch.nn.functional.interpolate`.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(
            interpolate,
            (input,),
            input,
            size=size,
            scale_factor=scale_factor,
            mode=mode,
            align_corners=align_corners,
            recompute_scale_factor=recompute_scale_factor,
            antialias=antialias,
        )
    try:
        rank = input.dim()
        if align_corners is not None and type(align_corners) is not bool:
            raise TypeError  # explained below: 1 == True, in a dict too
        attributes = _INTERPOLATE[mode, rank, align_corners, bool(antialias)]  # None is False
        sizes: Any = size
        factors: Any = ()
        if size is not None:
            if scale_factor is not None or recompute_scale_factor:
                raise ValueError  # explained below
            if not isinstance(size, (list, tuple)):
                sizes = (size,) * (rank - 2)
            for n in sizes:
                if type(n) is not int:
                    _check_ints(sizes)
        else:
            factors = scale_factor
            if not isinstance(scale_factor, (list, tuple)):
                factors = (scale_factor,) * (rank - 2)
            sizes = None  # the operator computes them
            if recompute_scale_factor or align_corners or mode == "area":
                if _tracing.is_tracing() and input.dtype != torch.uint8:
                    _scaled(input.shape[2:], factors)  # refuses bad ones
                    return _tracing.resample(
                        input, list(map(float, factors)), *attributes, **_chosen.options
                    )
                sizes, factors = _scaled(input.shape[2:], factors), ()
        if mode == "nearest-exact" or (
            mode == "nearest"
            and (
                input.dtype == torch.float64
                or len(factors) != factors.count(1) + factors.count(2)  # any() takes longer
            )
        ):
            factors, attributes = _nearest_as_aten(input, sizes, factors, mode)
        if mode == "area":
            if 0 in sizes:  # only here does torch give an empty result
                return torch.nn.functional.interpolate(input, sizes, mode=mode)
            if rank == 5:
                if not all(_tracing.holds(n == 1) for n in sizes):
                    # As torch's result is, but for a single pixel. The views make the strides of
                    # sizes of 1, which contiguous() leaves alone, say so too.
                    input = input.contiguous().flatten().view(input.shape)
            elif rank == 3:  # torch takes it for an image
                image: Tensor = _resample(
                    input.unsqueeze(2), (1, *sizes), (), *attributes, **_chosen.options
                )
                return image.squeeze(2)
        if mode in ("bicubic", "lanczos") and input.dtype == torch.uint8:
            if len(factors or sizes) != rank - 2 or any(isinstance(f, Tensor) for f in factors):
                raise ValueError  # explained below
            return _axis_by_axis(input, sizes, factors, attributes)
        elements = input.numel()
        if type(elements) is int and elements == 0 and mode != "area" and input.shape[1] == 0:
            raise ValueError(
                f"interpolate: expected input to have channels, got sizes {list(input.shape)}"
            )
        options = _chosen.options
        if not options and not is_dynamo_compiling():
            result = _quick_resample(input, sizes, factors, *attributes)
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
        if any(isinstance(factor, Tensor) for factor in factors):
            raise TypeError  # explained below
        _tracing.read_numbers(*factors)
        return _resample(  # type: ignore[no-any-return]
            input, sizes, factors, *attributes, **options
        )
    except Exception as error:
        given = (size, scale_factor, mode, align_corners, recompute_scale_factor, bool(antialias))
        _explain_interpolate(error, input, *given)
        raise


def _axis_by_axis(
    input: Tensor, sizes: Sequence[int] | None, factors: Sequence[float], attributes: _Attributes
) -> Tensor:
    """Rounds and saturates between the axes, the last one first, as torch and Pillow do for uint8,
    which the filters that overshoot show."""
    sizes = sizes or _scaled(input.shape[2:], factors)
    for axis in reversed(range(len(sizes))):
        size, factor = list(input.shape[2:]), [1.0] * len(sizes)
        size[axis] = sizes[axis]
        if factors:
            factor[axis] = factors[axis]
        input = _resample(input, size, factor if factors else (), *attributes, **_chosen.options)
    return input


def _explain_interpolate(
    error: Exception,
    input: Tensor,
    size: object,
    scale_factor: Any,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
    antialias: bool,
) -> None:
    """Raises what torch raises, by its checks in its order; any other error, the caller raises."""
    if not isinstance(input, Tensor):
        raise AttributeError(f"interpolate: expected input to be a Tensor, got {describe(input)}")
    rank = input.dim()
    combination = f"mode={mode!r}, align_corners={align_corners}, antialias={antialias}"
    if mode in ("nearest", "nearest-exact", "area") and align_corners is not None:
        raise ValueError(
            "interpolate: expected align_corners only with the linear and cubic modes, got "
            f"{combination}"
        )
    if (size is None) == (scale_factor is None):
        raise ValueError(
            "interpolate: expected either size or scale_factor, got "
            f"size={size}, scale_factor={scale_factor}"
        )
    for name, value in {"size": size, "scale_factor": scale_factor}.items():
        if isinstance(value, (list, tuple)) and len(value) != rank - 2:
            raise ValueError(
                f"interpolate: expected {name} to have one entry per spatial dimension of input, "
                f"which has sizes {list(input.shape)}, got {value}"
            )
    if isinstance(size, (list, tuple)):
        check_types("interpolate", {"size": (size, "an int or a sequence of ints")})
    if recompute_scale_factor and size is not None:
        raise ValueError(
            "interpolate: expected recompute_scale_factor only with scale_factor, got "
            f"size={size}, recompute_scale_factor={recompute_scale_factor}"
        )
    if antialias and mode not in (_LINEAR.get(rank), "bicubic", "lanczos"):
        raise ValueError(
            "interpolate: expected antialias only with bicubic, lanczos or the linear mode for "
            f"the rank of input, got a {rank}-D input and {combination}"
        )
    if mode == "lanczos" and (antialias or rank == 4) and (align_corners or not antialias):
        raise ValueError(
            "interpolate: expected lanczos with antialias=True and without align_corners, got "
            f"{combination}"
        )
    check_types("interpolate", {"align_corners": (align_corners, "a bool or None")})
    if mode not in _MODES or (mode, rank, align_corners, antialias) not in _INTERPOLATE:
        raise NotImplementedError(
            "interpolate: expected a 3-D to 5-D input and a mode for its rank (nearest, "
            "nearest-exact, area; linear for 3-D; bilinear, bicubic, lanczos for 4-D; trilinear "
            f"for 5-D), got a {rank}-D input and {combination}"
        )
    check_types(
        "interpolate",
        {
            "size": (size, "an int or a sequence of ints or None"),
            "scale_factor": (scale_factor, "a number or a sequence of numbers or None"),
        },
    )
    if scale_factor is not None:
        kind: type[Exception] = RuntimeError
        if recompute_scale_factor or mode == "area":
            # torch computes the size in Python, with Python's exceptions.
            one = not isinstance(scale_factor, (list, tuple))
            try:
                _scaled(input.shape[2:], (scale_factor,) * (rank - 2) if one else scale_factor)
            except (OverflowError, ValueError) as in_python:
                kind = type(in_python)
        check_factors("interpolate", scale_factor, input.shape[2:], kind)
    # What the operator refuses: torch has no kernel for a type, and a RuntimeError for the rest.
    if isinstance(error, (ValueError, TypeError)):
        refusal = NotImplementedError if isinstance(error, TypeError) else RuntimeError
        raise refusal(in_words_of("interpolate", error, {"src": "input"})) from error


def resample(
    src: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    *,
    mode: Mode = "linear",
    coordinates: Coordinates = "half_pixel",
    nearest_mode: NearestMode = "round_prefer_ceil",
    antialias: bool = False,
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    roi: Sequence[float] | None = None,
    extrapolation_value: float = 0.0,
    recompute_scale_factor: bool = True,
    data_format: DataFormat = "NCX",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Resizes the spatial dimensions of `src` by any framework's rule. Defaults: oneDNN's.

    An output index o of an axis with I input and O output pixels reads the input at a coordinate
    x(o), where s is the scale: O / I, or the factor passed (see `recompute_scale_factor`). The
    weights of the neighbours of x always sum to 1.

    Args:
        src: [N, C, W], [N, C, H, W] or [N, C, D, H, W], or channels innermost with
            `data_format="NXC"`; float64, float32, bfloat16, float16 or an integer type, in any
            memory format.
        size: output size in pixels, one for all spatial dimensions or one for each.
        scale_factor: output size as a multiple of the input's, floor(I * factor), where `size`
            is not given.
        mode: "nearest"; "linear"; "cubic"; "lanczos3", "lanczos5"; "area" (the mean, as in
            adaptive average pooling).
        coordinates: one of

            - "half_pixel": (o + 0.5) / s - 0.5;
            - "align_corners": o (I - 1) / (s I - 1), 0 when O = 1;
            - "asymmetric": o / s;
            - "half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
              "tf_crop_and_resize": as ONNX Resize defines them.

        nearest_mode: how "nearest" rounds x: "round_prefer_ceil", "round_prefer_floor", "floor",
            "ceil".
        antialias: widen the filter by max(1, 1 / s) when shrinking (linear, cubic, lanczos).
        cubic_coeff_a: the coefficient of the cubic filter.
        exclude_outside: drop neighbours outside the image and renormalise, instead of clamping
            them to the edge.
        roi: the region that "tf_crop_and_resize" reads, in [0, 1] of the image: the starts of all
            spatial dimensions, then the ends.
        extrapolation_value: what "tf_crop_and_resize" gives outside the image.
        recompute_scale_factor: True takes s from the sizes, whatever factor was passed (oneDNN);
            False takes it from `scale_factor` (ONNX, torch).
        data_format: "NCX" or "NXC".
        dtype: type of the output, if not the input's. Integers round to nearest even and
            saturate.

    Returns:
        `src` with its spatial sizes replaced, in its memory format.

    Raises:
        ValueError: a bad value, neither `size` nor `scale_factor`, an empty output, or a factor
            that is not finite and positive.
        TypeError: an argument of a wrong type, or a type of `src` that cannot be resampled.
        NotImplementedError: a combination that does not exist.

    Example:
        >>> images = torch.rand(1, 32, 48, 3)
        >>> resample(images, (64, 64), mode="cubic", data_format="NXC").shape
        torch.Size([1, 64, 64, 3])

    Definition: the oneDNN Resampling primitive and the ONNX Resize operator.
    """
    try:
        spatial = src.dim() - 2
        sizes: Any = size
        factors: Any = scale_factor
        if scale_factor is None:
            factors = ()
        elif not isinstance(scale_factor, (list, tuple)):
            factors = (scale_factor,) * spatial
        if size is None:
            first = 2 if data_format == "NCX" else 1
            sizes = _scaled(src.shape[first : first + spatial], factors)
        else:
            if not isinstance(size, (list, tuple)):
                sizes = (size,) * spatial
            elif not size:  # the operator would compute it
                raise ValueError(f"resample: expected size to have {spatial} entries, got {size}")
            _check_ints(sizes)
            if factors and recompute_scale_factor:
                _scaled(sizes, factors)  # is not used: must be right all the same
                check_factors("resample", factors, src.shape, ValueError)
        if not (dtype is None or isinstance(dtype, torch.dtype)):
            raise TypeError  # explained below; the schema takes an int
        if (
            type(antialias) is not bool
            or type(exclude_outside) is not bool
            or type(recompute_scale_factor) is not bool
            or bool in map(type, (cubic_coeff_a, extrapolation_value, *factors, *(roi or ())))
        ):
            raise TypeError  # explained below; to the schema bools and numbers are the same
        if coordinates not in _COORDINATES:
            raise ValueError(
                f"resample: expected coordinates to be one of {', '.join(_COORDINATES)}, "
                f"got {coordinates!r}"
            )
        attributes = (
            mode,
            coordinates,
            nearest_mode,
            antialias,
            cubic_coeff_a,
            exclude_outside,
            [] if roi is None else roi,
            extrapolation_value,
            data_format,
            dtype,
        )
        used = () if recompute_scale_factor else factors
        _tracing.read_numbers(cubic_coeff_a, extrapolation_value, *(roi or ()), *used)
        options = _chosen.options
        if size is None and _tracing.is_tracing():
            if recompute_scale_factor:
                return _tracing.resample(src, list(map(float, factors)), *attributes, **options)
            sizes = None
        return _resample(  # type: ignore[no-any-return]
            src, sizes, used, *attributes, **options
        )
    except Exception:
        check_types(
            "resample",
            {
                "src": (src, "a Tensor"),
                "size": (size, "an int or a sequence of ints or None"),
                "scale_factor": (scale_factor, "a number or a sequence of numbers or None"),
                "mode": (mode, "a str"),
                "coordinates": (coordinates, "a str"),
                "nearest_mode": (nearest_mode, "a str"),
                "antialias": (antialias, "a bool"),
                "cubic_coeff_a": (cubic_coeff_a, "a number"),
                "exclude_outside": (exclude_outside, "a bool"),
                "roi": (roi, "a sequence of numbers or None"),
                "extrapolation_value": (extrapolation_value, "a number"),
                "recompute_scale_factor": (recompute_scale_factor, "a bool"),
                "data_format": (data_format, "a str"),
                "dtype": (dtype, "a torch.dtype or None"),
            },
        )
        if size is None and scale_factor is None:
            raise ValueError(
                "resample: expected size or scale_factor to be given, got neither"
            ) from None
        if scale_factor is not None:
            if isinstance(scale_factor, (list, tuple)) and len(scale_factor) != src.dim() - 2:
                raise ValueError(
                    "resample: expected scale_factor to have one entry per spatial dimension of "
                    f"src, which has sizes {list(src.shape)}, got {scale_factor}"
                ) from None
            check_factors("resample", scale_factor, src.shape, ValueError)
        raise
