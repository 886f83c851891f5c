"""Train a CNN on handwritten digits on device "tpu"; it reads over 97 % of unseen ones.

    python examples/train_digits.py [--device tpu] [--steps 300] [--compare] [--out demo_output]

The data are the 1,797 scanned digits that come with scikit-learn, 8x8 pixels each.
"""

import argparse
from pathlib import Path

import torch
from report import COMPARED, Progress, assert_same_curve, plot_curves
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 64
TRAINING = 1408  # a whole number of batches; the 389 digits after them are the test
ENOUGH_STEPS = 200  # fewer than this are a smoke run: the accuracy is shown, not asserted


def digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 1, 8, 8] in 0..1 and labels [1797], shuffled once."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(data.target, dtype=torch.int64)[order]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(device: str, images: Tensor, labels: Tensor, steps: int) -> tuple[nn.Module, list[float]]:
    """Train a new model for `steps` minibatches; returns it with its losses."""
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = images.to(device), labels.to(device)
    progress, losses = Progress(device, steps), []
    for step in range(steps):
        start = step * BATCH % len(images)
        loss = nn.functional.cross_entropy(
            model(images[start : start + BATCH]), labels[start : start + BATCH]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        progress.update(step + 1, losses[-1])
    return model, losses


@torch.no_grad()
def accuracy(model: nn.Module, device: str, images: Tensor, labels: Tensor) -> float:
    answers = model.eval()(images.to(device)).argmax(dim=1)
    return (answers == labels.to(device)).float().mean().item()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a CNN on handwritten digits.")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compare", action="store_true", help="train on torch's CPU too")
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    args = parser.parse_args(argv)

    images, labels = digits()
    print(f"digits: {TRAINING} for training, {len(labels) - TRAINING} for the test")
    model, losses = train(args.device, images[:TRAINING], labels[:TRAINING], args.steps)
    curves = {args.device: losses}
    if args.compare:
        steps = min(args.steps, COMPARED)
        _, curves["cpu"] = train("cpu", images[:TRAINING], labels[:TRAINING], steps)
        worst = assert_same_curve(losses, curves["cpu"])
        print(f"losses equal torch CPU's: at most {worst:.0e} apart in the first {steps} steps")
    picture = args.out / "digits.png"
    plot_curves(picture, "CNN on digits", curves)
    share = accuracy(model, args.device, images[TRAINING:], labels[TRAINING:])
    print(f"test accuracy {share:.1%}; curves in {picture}")
    if args.steps >= ENOUGH_STEPS:
        assert share > 0.97, f"accuracy {share:.1%} after {args.steps} steps, expected over 97 %"


if __name__ == "__main__":
    main()
