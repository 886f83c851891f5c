"""The examples run on the device, stay equal to torch CPU, and never import jax."""

from pathlib import Path

import pytest

from tests.fresh_process import ROOT, output

EXAMPLES = ["train_digits", "train_gpt"]


def run_example(name: str, *options: str | Path) -> str:
    """Run one in a process of its own; its output."""
    file = ROOT / "examples" / f"{name}.py"
    text = f"""
        import runpy, sys
        sys.argv = {[str(file), *map(str, options)]!r}
        sys.path.insert(0, {str(file.parent)!r})
        runpy.run_path(sys.argv[0], run_name="__main__")
        assert "jax" not in sys.modules, "the example imported jax"
    """
    return output(text, timeout=600, OMP_NUM_THREADS="1")


def test_every_example_is_run() -> None:
    files = {file.stem for file in (ROOT / "examples").glob("train_*.py")}
    assert files == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_three_steps_run(name: str, tmp_path: Path) -> None:
    assert "curves in" in run_example(name, "--steps", "3", "--out", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_losses_equal_torch_cpu(name: str, tmp_path: Path) -> None:
    shown = run_example(name, "--steps", "20", "--compare", "--out", tmp_path)
    assert "losses equal torch CPU's" in shown
    assert [file.suffix for file in tmp_path.iterdir()] == [".png"]


@pytest.mark.by_hand
@pytest.mark.parametrize("name", EXAMPLES)
def test_exits_cleanly_twenty_times(name: str, tmp_path: Path) -> None:
    for _ in range(20):
        run_example(name, "--steps", "3", "--out", tmp_path)
