"""What both training examples show: progress, curves next to torch CPU's, a picture of them."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpu_kernels.testing import assert_close

COMPARED = 50  # the first steps: as many as the tolerance named CURVE speaks of


class Progress:
    """A bar redrawn in place on a terminal; elsewhere one line per tenth of the work."""

    def __init__(self, label: str, steps: int) -> None:
        self.label, self.steps = label, steps
        self.terminal = sys.stdout.isatty()
        self.started = time.perf_counter()
        self.shown = 0.0 if self.terminal else self.started

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def update(self, step: int, loss: float) -> None:
        """Show `step` of `steps` as done, with its loss."""
        tenth = max(1, self.steps // 10)
        due = time.perf_counter() - self.shown > 0.1 if self.terminal else step % tenth == 0
        if not due and step not in (1, self.steps):
            return
        self.shown = time.perf_counter()
        bar = "#" * (24 * step // self.steps)
        line = f"{self.label:<4} [{bar:<24}] {step:>4}/{self.steps}  loss {loss:.4f}"
        line += f"  {self.seconds:5.1f} s"
        end = "" if self.terminal and step < self.steps else "\n"
        print(f"\r{line}" if self.terminal else line, end=end, flush=True)


def assert_same_curve(got: Sequence[float], want: Sequence[float]) -> float:
    """Assert that the first losses are torch CPU's; returns the largest relative difference."""
    got, want = got[:COMPARED], want[:COMPARED]
    assert_close(got, want, policy="CURVE")
    return max(abs(a - b) / b for a, b in zip(got, want, strict=True))


def plot_curves(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG with one loss curve per name; the last ones are drawn over the first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=False):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    axes.set(title=title, xlabel="step", ylabel="training loss")
    axes.set_xscale("log")  # the compared steps are the first ones
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
