"""What is published: the sdist holds all that a wheel is built from and tested with, the wheel only `lineage`."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import lineage

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LINEAGE_"))}


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("built")
    run("-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the wheel was installed, alone."""
    target = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return target


def run_installed(installed: Path, *arguments: str) -> str:
    """Runs Python on the wheel and its dependencies; -S passes over .pth files, and with them the editable install."""
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return run("-S", "-P", *arguments, cwd=installed.parent, PYTHONPATH=path)


def test_sdist_holds_everything(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "constraints.txt",
        "hatch_build.py",
        "cli.py",
    } <= names
    top = {name.partition("/")[0] for name in names}
    assert {"lineage", "specs", "converters", "tests", "examples"} <= top
    assert not top & {".venv", ".git", "build", "dist"}
    missing = {
        p.relative_to(ROOT).as_posix() for top in ("specs", "converters", "tests") for p in (ROOT / top).rglob("*.py")
    } - names
    assert not missing


def test_wheel_holds_one_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"lineage", f"lineage_models-{lineage.__version__}.dist-info"}
    sources = {
        path.relative_to(ROOT).as_posix() for top in ("specs", "converters") for path in (ROOT / top).rglob("*.py")
    }
    assert {
        "lineage/cli.py",
        "lineage/designs.py",
        "lineage/terminal.py",
        *(f"lineage/{source}" for source in sources),
    } <= set(names)
    data = {
        path.relative_to(ROOT) for path in (ROOT / "lineage").rglob("*.*") if path.suffix in (".css", ".html", ".js")
    }
    assert len(data) > 3
    assert {*(path.as_posix() for path in data), "lineage/specs/gallery.json"} <= set(names)


def test_wheel_works_away_from_the_checkout(installed: Path) -> None:
    code = (
        "import sys, lineage.cli, lineage.specs as specs; print(lineage.__file__, lineage.cli.__file__, specs.__file__)"
    )
    for file in run_installed(installed, "-c", code).split():
        assert Path(file).is_relative_to(installed)
    assert str(ROOT) not in run_installed(installed, "-c", "import sys; print(*sys.path, sep='\\n')").splitlines()
    assert lineage.__version__ in run_installed(installed, "-m", "lineage", "--version")
    assert "gpt2" in run_installed(installed, "-m", "lineage", "show", "gpt2", "--html", "page.html")
    assert "<style>" in (installed.parent / "page.html").read_text(encoding="utf-8")
    code = "from lineage.render.gallery import Gallery; print(len(Gallery().pairs))"
    assert int(run_installed(installed, "-c", code)) > 3


def test_newest_change_is_of_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", changes, re.MULTILINE)
    assert versions[0] == lineage.__version__
