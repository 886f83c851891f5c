"""A few lines on the device, run as a script in every kind of installation (test_install.py).

Imports torch only: the entry point brings the device. The last line tells which copy ran.
"""

import sys

import torch


def one_step(device: str) -> list[float]:
    """The parameters of a small model after one step of SGD."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
    return [v for p in model.parameters() for v in p.detach().flatten().tolist()]


def main() -> None:
    x = torch.ones(2, 3, device="tpu")
    assert (x + 1).tolist() == [[2, 2, 2], [2, 2, 2]]
    x[:, 1:].mul_(5)
    assert x.tolist() == [[1, 5, 5], [1, 5, 5]]
    torch.testing.assert_close(one_step("tpu"), one_step("cpu"))
    print(sys.modules["tpu_kernels"].__file__)


if __name__ == "__main__":
    main()
