"""One smoke file in every kind of installation: editable, from a wheel, from an sdist.

Each is a virtual environment of its own that borrows the running one's packages, so that torch is
not installed again.
"""

import os
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


def run(*command: str | Path, **options: object) -> str:
    """Run to success; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make wheel` fills."""
    dist, stage = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("stage")
    variables = f"PY={sys.executable}", "READY=", f"DIST={dist}", f"STAGE={stage}"
    run("make", "--no-print-directory", "wheel", *variables, cwd=ROOT)
    return dist


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of a virtual environment that sees the running one's packages."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", vars={"base": str(folder)})
    Path(packages, "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    pip = sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"
    run(
        *pip, "install", "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=python.parent
    )


def smoke(python: Path, **variables: str) -> Path:
    """Run the smoke file away from the repository; the folder of the package that ran."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    shown = run(python, ROOT / "tests" / "smoke.py", cwd=python.parent, env=environ)
    return Path(shown.splitlines()[-1]).parent


def test_editable(environment: Path) -> None:
    install(environment, "-e", ROOT)
    assert smoke(environment) == ROOT / "tpu_kernels"


def test_sdist(environment: Path, archives: Path) -> None:
    install(environment, *archives.glob("*.tar.gz"))
    assert environment.parent.parent in smoke(environment).parents


def test_wheel_needs_no_compiler(environment: Path, archives: Path, tmp_path: Path) -> None:
    install(environment, *archives.glob("*.whl"))
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    home = tmp_path / "home"
    home.mkdir(0o700)
    where = smoke(environment, PATH=str(nothing), HOME=str(home), XDG_CACHE_HOME=str(home))
    assert environment.parent.parent in where.parents


def test_wheel_carries_the_sources_of_the_core(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    assert wheel.stem.endswith(sysconfig.get_platform().replace("-", "_").replace(".", "_"))
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    sources = {file.name for file in (ROOT / "backend" / "csrc").iterdir()}
    packed = Path("tpu_kernels", "backend")
    assert sources == {name.name for name in names if name.parent == packed / "csrc"}
    assert [name for name in names if name.parent == packed / "prebuilt"]
    assert Path("tpu_kernels", "py.typed") in names
