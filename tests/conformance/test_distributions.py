"""Random operators: do their numbers follow the distribution that torch documents?

One draw of many numbers from a fixed seed, so that a test says the same each time.
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Cauchy, Distribution, Exponential, Normal, Uniform

N = 20_000
LEAST = 1e-6  # the p-value below which a draw is not believed


def empty(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(N, dtype=dtype, device="tpu")


def full(value: float) -> Tensor:
    return torch.full((N,), value, dtype=torch.float32, device="tpu")


def kolmogorov(values: Tensor, distribution: Distribution) -> float:
    """The p-value of the largest distance between empirical and given distribution function."""
    steps = torch.arange(1, len(values) + 1, dtype=torch.float64) / len(values)
    distance = (distribution.cdf(values.double().sort().values) - steps).abs().max().item()
    return 2 * math.exp(-2 * len(values) * distance**2)


def chi_square(counts: Tensor, wanted: Tensor) -> float:
    """The p-value of Pearson's test."""
    statistic = ((counts - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, statistic / 2).item()


CONTINUOUS: dict[str, tuple[Callable[[], Tensor], Distribution]] = {
    "rand": (lambda: torch.rand(N, device="tpu"), Uniform(0, 1)),
    "rand_like float64": (lambda: torch.rand_like(empty(torch.float64)), Uniform(0, 1)),
    "uniform_": (lambda: empty().uniform_(-2, 3), Uniform(-2, 3)),
    "randn": (lambda: torch.randn(N, device="tpu"), Normal(0, 1)),
    "randn float64": (lambda: torch.randn(N, dtype=torch.float64, device="tpu"), Normal(0, 1)),
    "randn_like": (lambda: torch.randn_like(empty()), Normal(0, 1)),
    "normal_": (lambda: empty().normal_(1, 2), Normal(1, 2)),
    "normal of tensors": (lambda: torch.normal(full(1), full(2)), Normal(1, 2)),
    "log_normal_": (lambda: empty().log_normal_(0.5, 0.25).log(), Normal(0.5, 0.25)),
    "exponential_": (lambda: empty().exponential_(2), Exponential(2)),
    "cauchy_": (lambda: empty().cauchy_(1, 2), Cauchy(1, 2)),
    "rrelu": (lambda: F.rrelu(full(-1), 0.1, 0.3, training=True), Uniform(-0.3, -0.1)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str) -> None:
    draw, distribution = CONTINUOUS[name]
    torch.manual_seed(0)
    values = draw().double().cpu()
    assert values.shape == (N,)
    assert kolmogorov(values, distribution) > LEAST
    neighbours = torch.stack((values[1:].atan(), values[:-1].atan()))
    assert neighbours.corrcoef()[0, 1].abs() < 5 / N**0.5


def choice(weights: Tensor, replacement: bool) -> Tensor:
    rows = weights.to("tpu").expand(N, -1)
    return torch.multinomial(rows, 1 if replacement else len(weights), replacement)[:, 0]


WEIGHTS = torch.tensor([1.0, 0.0, 3.0, 4.0])
# Numbers that are drawn with given probabilities.
DISCRETE: dict[str, tuple[Callable[[], Tensor], dict[float, float]]] = {
    "bernoulli": (lambda: torch.bernoulli(full(0.3)), {0: 0.7, 1: 0.3}),
    "bernoulli_": (lambda: empty(torch.int64).bernoulli_(0.3), {0: 0.7, 1: 0.3}),
    "randint": (
        lambda: torch.randint(-2, 2, (N,), device="tpu"),
        dict.fromkeys(range(-2, 2), 1 / 4),
    ),
    "randint_like": (lambda: torch.randint_like(empty(), 5), dict.fromkeys(range(5), 1 / 5)),
    "random_": (lambda: empty(torch.int32).random_(3, 6), dict.fromkeys(range(3, 6), 1 / 3)),
    "random_ bool": (lambda: empty(torch.bool).random_(), {0: 1 / 2, 1: 1 / 2}),
    "geometric_": (
        lambda: empty().geometric_(0.6).clamp_max(4),
        {1: 0.6, 2: 0.24, 3: 0.096, 4: 0.064},
    ),
    "multinomial": (lambda: choice(WEIGHTS, True), {0: 1 / 8, 2: 3 / 8, 3: 4 / 8}),
    "multinomial, without replacement": (
        lambda: choice(WEIGHTS[[0, 2, 3]], False),
        {0: 1 / 8, 1: 3 / 8, 2: 4 / 8},
    ),
    "dropout": (lambda: F.dropout(full(1), 0.2), {0: 0.2, 1.25: 0.8}),
    "dropout2d": (lambda: F.dropout2d(full(1)[None, :, None, None], 0.2), {0: 0.2, 1.25: 0.8}),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name: str) -> None:
    draw, probabilities = DISCRETE[name]
    torch.manual_seed(0)
    values, counts = draw().flatten().double().cpu().unique(return_counts=True)
    assert values.tolist() == sorted(probabilities)
    wanted = torch.tensor([N * probabilities[value] for value in values.tolist()]).double()
    assert chi_square(counts, wanted) > LEAST


def test_alpha_dropout_keeps_mean_and_deviation() -> None:
    torch.manual_seed(0)
    x = torch.randn(N, device="tpu")
    y = F.alpha_dropout(x, 0.3, training=True).cpu()
    assert 0.28 < (y == y.mode().values).float().mean().item() < 0.32  # all that were dropped
    assert abs(y.mean().item()) < 0.05
    assert abs(y.std().item() - 1) < 0.05


def test_dropout_drops_the_gradient_with_the_value() -> None:
    x = full(3).requires_grad_()
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), (y / 3).detach().cpu())


def test_randperm_is_a_permutation() -> None:
    torch.manual_seed(0)
    values = torch.randperm(N, device="tpu").cpu()
    assert torch.equal(values.sort().values, torch.arange(N))
    assert kolmogorov(values[: N // 2] / N, Uniform(0, 1)) > LEAST


def test_draws_differ_and_a_seed_repeats_them() -> None:
    torch.manual_seed(5)
    one, two = torch.rand(8, device="tpu").tolist(), torch.rand(8, device="tpu").tolist()
    torch.manual_seed(5)
    assert torch.rand(8, device="tpu").tolist() == one
    assert one != two
