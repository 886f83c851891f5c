"""What pyproject.toml promises, compared with the folders and with the built archives."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tpu_kernels

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {"tpu_kernels": "tpu_kernels", "backend": "tpu_kernels.backend"}
FOLDERS["kernels"] = "tpu_kernels.kernels"


def test_package_list_is_the_folders() -> None:
    found = set()
    for folder, name in FOLDERS.items():
        for file in (ROOT / folder).glob("**/__init__.py"):  # does not follow the symlinks
            found.add(".".join((name, *file.parent.relative_to(ROOT / folder).parts)))
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


@pytest.mark.parametrize("folder", ["backend", "kernels"])
def test_links_show_the_folders_under_their_import_names(folder: str) -> None:
    assert (ROOT / "tpu_kernels" / folder).resolve() == ROOT / folder


@pytest.mark.parametrize("folder", ["backend", "kernels"])
def test_plain_import_is_refused(folder: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "ImportError: this folder was imported as" in run.stderr
    assert f"its import name is 'tpu_kernels.{folder}'" in run.stderr


def test_entry_point_is_torchs() -> None:
    assert PROJECT["project"]["entry-points"]["torch.backends"] == {
        "tpu": "tpu_kernels._autoload:autoload"
    }


def test_torch_is_no_build_requirement() -> None:
    assert not [r for r in PROJECT["build-system"]["requires"] if r.startswith("torch")]


def test_ranges_are_open_upward() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    for requirement in PROJECT["project"]["dependencies"] + [r for e in extras for r in e]:
        assert "<" not in requirement and "==" not in requirement.partition(";")[0], requirement


def test_version_is_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    source = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert source == "tpu_kernels.version.__version__"
    assert f"\n## {tpu_kernels.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_everything_installed_by_make_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text().split()
    names = {line.partition("==")[0] for line in pins if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = PROJECT["project"]["dependencies"] + [r for extra in extras for r in extra]
    assert {r.partition(";")[0].partition(">")[0] for r in wanted} <= names
