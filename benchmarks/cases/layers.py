"""The convolutions of real networks, from conv_layers.csv."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path


@dataclass
class Layer:
    name: str
    n: int
    ic: int
    oc: int
    spatial: list[int]
    kernel: list[int]
    stride: int
    padding: int
    dilation: int
    groups: int

    @property
    def dims(self) -> int:
        return len(self.spatial)

    @property
    def attributes(self) -> list[list[int]]:
        """Strides, padding and dilations, as torch's operators take them."""
        return [[value] * self.dims for value in (self.stride, self.padding, self.dilation)]

    @property
    def options(self) -> dict[str, object]:
        """The attributes of torch_dnnl's operators."""
        strides, pads, dilations = self.attributes
        given = {"strides": strides, "pads_begin": pads, "pads_end": pads, "dilations": dilations}
        return given | {"groups": self.groups, "data_format": "NCX", "weights_format": "OIX"}

    @property
    def weights_shape(self) -> tuple[int, ...]:
        return (self.oc, self.ic // self.groups, *self.kernel)

    @property
    def terms(self) -> int:
        """Products in the sum of an output."""
        return self.ic // self.groups * prod(self.kernel)

    def of(self, functions: tuple[Callable, Callable, Callable]) -> Callable:
        """The function of three, for one to three axes, that takes this layer."""
        return functions[self.dims - 1]


def read_layers() -> list[Layer]:
    with (Path(__file__).parents[1] / "conv_layers.csv").open() as file:
        return [layer_of(row) for row in csv.DictReader(file)]


def layer_of(row: dict[str, str]) -> Layer:
    shapes = {key: [int(side) for side in row[key].split("x")] for key in ("spatial", "kernel")}
    numbers = ("n", "ic", "oc", "stride", "padding", "dilation", "groups")
    return Layer(row["name"], **shapes, **{key: int(row[key]) for key in numbers})
