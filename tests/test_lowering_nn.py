"""Layers against torch on the CPU, values and gradients, where a lowering is easily wrong."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tpu_kernels.testing import assert_close

NAN, INF = float("nan"), float("inf")
aten = torch.ops.aten


def randn(*shape: int) -> Tensor:
    """The same numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [x for x in result if isinstance(x, Tensor)]  # type: ignore[attr-defined]


def run(function: Callable, operands: tuple, device: str) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and gradients of all float operands by a fixed cotangent."""
    given = [
        x.to(device).requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in (x.detach().clone() if isinstance(x, Tensor) else x for x in operands)
    ]
    results = tensors(function(*given))
    smooth = [x for x in results if x.requires_grad]
    leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    if not smooth or not leaves:
        return results, []
    cotangents = [randn(*x.shape).to(device, x.dtype) for x in smooth]
    gradients = torch.autograd.grad(smooth, leaves, cotangents, allow_unused=True)
    return results, [x for x in gradients if x is not None]


def same(function: Callable, *operands: object, policy: str = "FP32_ACCUM") -> None:
    """function of the operands is on the device what it is on the CPU; and so are its gradients."""
    want, want_grads = run(function, operands, "cpu")
    got, got_grads = run(function, operands, "tpu")
    for g, w in zip([*got, *got_grads], [*want, *want_grads], strict=True):
        inexact = w.is_floating_point() or w.is_complex()
        assert_close(g.detach(), w.detach(), policy if inexact else "EXACT")


# Products.


@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1), ()])
def test_beta_of_zero_ignores_nan(shape: tuple[int, ...]) -> None:
    addend = torch.full(shape, NAN)
    for beta in (0, 0.0):
        got = torch.addmm(addend.to("tpu"), randn(3, 5).to("tpu"), randn(5, 4).to("tpu"), beta=beta)
        assert_close(got, randn(3, 5) @ randn(5, 4), "FP32_ACCUM")


def test_float32_products_are_float32() -> None:
    product = torch.tensor([[1 + 2**-9]], device="tpu") @ torch.ones(1, 1, device="tpu")
    assert product.item() == 1.001953125


def test_products_of_nothing() -> None:
    same(torch.mm, torch.empty(3, 0), torch.empty(0, 4))
    same(torch.addmm, randn(4), torch.empty(3, 0), torch.empty(0, 4))
    same(torch.bmm, torch.empty(0, 3, 4), torch.empty(0, 4, 5))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_integer_products_wrap(dtype: torch.dtype) -> None:
    x = torch.arange(12).mul(37).to(dtype).view(3, 4)
    same(torch.mm, x, x.T.contiguous())


def test_bfloat16_accumulates_wide() -> None:
    ones = torch.ones(1, 1024, dtype=torch.bfloat16)
    assert (ones.to("tpu") @ ones.to("tpu").T).item() == 1024
    x = randn(1, 12, 8).bfloat16().to("tpu").mT  # a batch of one, transposed
    got = torch.bmm(x, randn(1, 12, 5).bfloat16().to("tpu"))
    want = randn(1, 12, 8).bfloat16().float().mT @ randn(1, 12, 5).bfloat16().float()
    assert_close(got, want, "BF16_OUT")


def test_operands_of_two_dtypes_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu", dtype=torch.float64)


# Convolutions.

CONVOLUTIONS: dict[str, tuple] = {
    "plain": (nn.Conv2d(4, 6, 3), (2, 4, 7, 6)),
    "all options": (nn.Conv2d(4, 8, (3, 2), (2, 1), (1, 2), (2, 1), groups=2), (2, 4, 9, 8)),
    "depthwise": (nn.Conv2d(4, 4, 3, padding="same", groups=4, bias=False), (2, 4, 6, 6)),
    "remainder": (nn.Conv1d(2, 3, 2, stride=3), (2, 2, 9)),
    "three dimensions": (nn.Conv3d(2, 3, 2, stride=2, padding=1), (1, 2, 5, 4, 3)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 4, 3)),
    "output padding": (
        nn.ConvTranspose1d(2, 3, 3, stride=1, dilation=2, output_padding=1),
        (2, 2, 5),
    ),
    "one sample": (nn.Conv2d(3, 4, 3, padding=1), (3, 5, 5)),
    "no sample": (nn.Conv2d(3, 4, 3), (0, 3, 5, 5)),
}


@pytest.mark.parametrize("layer, shape", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution(layer: nn.Module, shape: tuple[int, ...]) -> None:
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def apply(x: Tensor, *given: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, given, strict=True)), x)

    same(apply, randn(*shape), *parameters)


def test_convolution_keeps_channels_last() -> None:
    x = randn(2, 4, 6, 5).to(memory_format=torch.channels_last)
    got, want = (F.conv2d(v, randn(8, 4, 3, 3).to(v.device)) for v in (x.to("tpu"), x))
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_close(got, want, "FP32_ACCUM")


def test_convolution_of_integers_and_complex() -> None:
    x, w = torch.arange(50).view(1, 2, 5, 5), torch.arange(-18, 18).view(2, 2, 3, 3)
    same(F.conv2d, x, w)
    same(F.conv1d, torch.complex(randn(1, 2, 6), randn(1, 2, 6)), randn(3, 2, 2).to(torch.cfloat))


# Pools.

TIES = randn(2, 3, 9, 8).mul(2).round()
HOLES = TIES.clone()
HOLES[0, 0, 1, 1] = HOLES[0, 0, 2, 2] = NAN
HOLES[0, 1], HOLES[0, 2, 4, 4] = -INF, INF

POOLS: dict[str, Callable] = {
    "max": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "max padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max ceil": lambda x: F.max_pool2d(x, (3, 2), 2, ceil_mode=True, return_indices=True),
    "max dilated": lambda x: F.max_pool2d(x, 2, 1, 0, (2, 3), return_indices=True),
    "max of much": lambda x: F.max_pool2d(F.pad(x, (12, 0)), (9, 20), return_indices=True),
    "max overlapping": lambda x: F.max_pool2d(F.pad(x, (20, 0)), (1, 18), 1, return_indices=True),
    "max of all": lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True),
    "max adaptive": lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True),
    "max 1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "max 3d": lambda x: F.max_pool3d(x, 2, 1, return_indices=True),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average uncounted": lambda x: F.avg_pool2d(x, 3, 2, 1, True, count_include_pad=False),
    "average divided": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "average adaptive": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "average grown": lambda x: F.adaptive_avg_pool2d(x, (12, 8)),
    "lp": lambda x: F.lp_pool2d(x.abs() + 1, 2, 3),
    "unfold": lambda x: F.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1)),
    "fold": lambda x: F.fold(x.reshape(2, 12, 18), (7, 4), 2, padding=(0, 0)),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_pool(pool: Callable) -> None:
    same(pool, TIES, policy="FP32")


@pytest.mark.parametrize("name", ["max", "max padded", "max of all", "max adaptive", "average"])
def test_pool_of_nan_and_infinity(name: str) -> None:
    same(POOLS[name], HOLES, policy="FP32")


# Norms.

BATCH = randn(4, 6, 3, 5) * 2 + 3
NORMS: dict[str, Callable] = {
    "layer": lambda x: F.layer_norm(x, x.shape[2:], randn(3, 5).to(x.device)),
    "group": lambda x: F.group_norm(x, 3, randn(6).to(x.device), randn(6).to(x.device)),
    "instance": lambda x: F.instance_norm(x),
    "batch": lambda x: F.batch_norm(x, None, None, training=True),
    "batch affine": lambda x: F.batch_norm(x, None, None, randn(6).to(x.device), training=True),
    "batch frozen": lambda x: F.batch_norm(
        x, randn(6).to(x.device), torch.ones_like(x[0, :, 0, 0])
    ),
    "rms": lambda x: F.rms_norm(x, x.shape[3:], randn(5).to(x.device), 1e-5),
    "local response": lambda x: F.local_response_norm(x, 2),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norm(norm: Callable) -> None:
    same(norm, BATCH)


def test_variance_far_from_zero() -> None:
    x = randn(64, 32) + 32
    want = F.layer_norm(x.double(), (32,)).float()
    assert_close(F.layer_norm(x.to("tpu"), (32,)), want, "FP32_ACCUM")
    got = F.layer_norm(x.bfloat16().to("tpu"), (32,))
    assert_close(got, F.layer_norm(x.bfloat16().double(), (32,)), "BF16_OUT")


def test_running_statistics() -> None:
    want, got = nn.BatchNorm2d(6), nn.BatchNorm2d(6).to("tpu")
    for training in (True, True, False):
        want.train(training), got.train(training)
        assert_close(got(BATCH.to("tpu")).detach(), want(BATCH).detach(), "FP32_ACCUM")
    for g, w in zip(got.buffers(), want.buffers(), strict=True):
        assert_close(g, w, "FP32" if w.is_floating_point() else "EXACT")


# Losses.

LOGITS, LABELS = randn(7, 5), torch.tensor([0, 4, 2, -100, 1, 2, 3])
LOSSES: dict[str, Callable] = {
    "ignored": lambda x, y: F.cross_entropy(x, y),
    "none": lambda x, y: F.cross_entropy(x, y, reduction="none"),
    "weighted": lambda x, y: F.cross_entropy(x, y, torch.arange(1.0, 6, device=x.device)),
    "ignore 2": lambda x, y: F.cross_entropy(x, y.clamp(min=0), ignore_index=2, reduction="sum"),
    "smooth": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "all ignored": lambda x, y: F.cross_entropy(x, torch.full_like(y, -100)),
    "plane": lambda x, y: F.nll_loss(x.view(1, 5, 7, 1), y.view(1, 7, 1)),
    "one": lambda x, y: F.nll_loss(x[0], y[0]),
    "margin": lambda x, y: F.multi_margin_loss(x, y.clamp(min=0), p=2),
    "binary": lambda x, y: F.binary_cross_entropy(x.sigmoid().round(), x.detach().sigmoid()),
    "huber": lambda x, y: F.huber_loss(x, x.detach().flip(0)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_loss(loss: Callable) -> None:
    same(loss, LOGITS, LABELS)


def test_label_out_of_range_is_nan() -> None:
    loss = F.cross_entropy(LOGITS.to("tpu"), torch.full((7,), 9, device="tpu"))
    assert loss.isnan().item()


# Resizing.

IMAGE = randn(2, 3, 5, 6)
MODES = ["nearest", "nearest-exact", "bilinear", "bicubic", "area"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(10, 12), (3, 8), (1, 1)])
def test_resize(mode: str, size: tuple[int, int]) -> None:
    same(lambda x: F.interpolate(x, size, mode=mode), IMAGE)


def test_resize_options() -> None:
    same(lambda x: F.interpolate(x, (9, 2), mode="bicubic", antialias=True), IMAGE)
    same(lambda x: F.interpolate(x, (7, 7), mode="bilinear", align_corners=True), IMAGE)
    same(lambda x: F.interpolate(x, scale_factor=1.6, mode="nearest"), IMAGE)
    spot = IMAGE.clone()
    spot[0, 0, 2, 2] = INF
    same(lambda x: F.interpolate(x, (10, 12)), spot)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(mode: str, padding: str) -> None:
    grid = randn(2, 4, 3, 2)
    same(lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=False), IMAGE, grid)


# Layers made of many ops.

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(4, 5, 2, bidirectional=True), (3, 2, 4)),
    "lstm without bias": (lambda: nn.LSTM(4, 5, bias=False, proj_size=3), (3, 2, 4)),
    "gru": (lambda: nn.GRU(4, 5, batch_first=True), (3, 2, 4)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True),
        (2, 5, 8),
    ),
}


@pytest.mark.parametrize("make, shape", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_layer(make: Callable[[], nn.Module], shape: tuple[int, ...], training: bool) -> None:
    torch.manual_seed(0)
    layer = make().train(training)
    want, got = layer(randn(*shape)), layer.to("tpu")(randn(*shape).to("tpu"))
    with torch.inference_mode():
        quick = layer(randn(*shape).to("tpu"))
    want, got, quick = (x[0] if isinstance(x, tuple) else x for x in (want, got, quick))
    assert_close(got.detach(), want.detach(), "FP32_ACCUM")
    assert_close(quick, want.detach(), "FP32_ACCUM")


def test_encoder_with_padding_takes_the_dense_path() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.inference_mode():
        want = encoder(randn(2, 5, 8), src_key_padding_mask=padding)
        got = encoder.to("tpu")(randn(2, 5, 8).to("tpu"), src_key_padding_mask=padding.to("tpu"))
    assert_close(got.cpu()[~padding], want[~padding], "FP32_ACCUM")
