"""Small models of torch's layers alone, each with what a kind of network is made of."""

import torch
from networks import Model
from torch import Tensor, nn
from torch.nn import functional


def block(inputs: int, outputs: int, size: int = 3, **options: object) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Down by pooling, up by interpolation and by a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = block(3, 32), block(32, 64), block(64, 64)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.join = block(128, 32)
        self.grow = nn.ConvTranspose2d(32, 32, 4, stride=2, padding=1)
        self.head = nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        y = self.up(self.bottom(self.pool(second)))
        y = self.grow(self.join(torch.cat([y, second], 1)))
        return self.head(torch.cat([y, first], 1))


class Inverted(nn.Module):
    """Widens, filters each channel, weighs the channels and narrows again."""

    def __init__(self, channels: int, size: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.widen = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide))
        self.filter = nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide)
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, channels, 1), nn.SiLU())
        self.weights = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.Sigmoid())
        self.narrow = nn.Sequential(nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels))
        self.activation = nn.Hardswish()
        # What follows is to depend on each layer, beside x in the sum.
        nn.init.constant_(self.widen[1].weight, 2.0)
        nn.init.constant_(self.narrow[1].weight, 5.0)
        for layer in (self.weigh[1], self.weights[0]):
            nn.init.normal_(layer.weight, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.filter(self.activation(self.widen(x))))
        y = self.narrow(y * self.weights(self.weigh(y)))
        return x + y if x.shape == y.shape else y


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = block(3, 16, stride=2)
        self.body = nn.Sequential(Inverted(16, 3, 1), Inverted(16, 5, 2), Inverted(16, 7, 1))
        self.grouped = nn.Conv2d(16, 32, 3, padding=2, dilation=2, groups=4)
        self.classes = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.grouped(self.body(self.stem(x))).mean((2, 3)))


class Segmentation(nn.Module):
    """Patches at two scales, brought to one size by functions and not by layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 24, 4, stride=4), nn.Conv2d(3, 24, 8, stride=8)
        self.large = nn.Conv2d(24, 24, 7, padding=3, padding_mode="reflect", groups=24)
        self.norm = nn.GroupNorm(4, 24)
        self.weight = nn.Parameter(torch.randn(6, 48, 3, 3) / 20)

    def forward(self, x: Tensor) -> Tensor:
        half = functional.interpolate(x, scale_factor=0.5, mode="area")
        fine, coarse = self.fine(x), functional.gelu(self.coarse(half))
        coarse = functional.interpolate(coarse, fine.shape[2:], mode="bicubic")
        both = torch.cat([self.norm(self.large(fine)), coarse], 1)
        y = functional.conv2d(both, self.weight, padding="same")
        return functional.interpolate(y, x.shape[2:], mode="bilinear")


class Wave(nn.Module):
    """1-D: dilated convolutions that see the past alone, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 32, 10, stride=5)
        self.layers = nn.ModuleList(nn.Conv1d(32, 64, 3, dilation=2**i) for i in range(3))
        self.grow = nn.ConvTranspose1d(32, 16, 5, stride=5)
        self.up = nn.Upsample(scale_factor=1.5, mode="linear")
        self.head = nn.Conv1d(16, 2, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for i, layer in enumerate(self.layers):
            y = y + functional.glu(layer(functional.pad(y, (2 * 2**i, 0))), 1)
        return torch.tanh(self.head(self.up(self.grow(y))))


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 16, 3, stride=2, padding=1), nn.BatchNorm3d(16))
        self.middle = nn.Conv3d(16, 16, (1, 3, 3), padding=(0, 1, 1))
        self.depth = nn.Conv3d(16, 16, 3, padding=1, groups=16)
        self.up = nn.Upsample(scale_factor=(2, 2, 2), mode="trilinear")
        self.head = nn.Conv3d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.down(x))
        return self.head(self.up(self.depth(functional.relu(self.middle(y)))))


MODELS = {
    "unet": Model("torch", UNet, (2, 3, 40, 52)),
    "mobile": Model("torch", Mobile, (3, 3, 61, 64)),
    "segmentation": Model("torch", Segmentation, (2, 3, 64, 96)),
    "wave": Model("torch", Wave, (2, 2, 1000)),
    "volume": Model("torch", Volume, (2, 1, 12, 18, 20)),
}
