"""What is shipped, and with which versions. Needs no network."""

from __future__ import annotations

import email
import importlib.metadata
import importlib.util
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import distprof

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = (
    "distprof",
    "benchmarks",
    "conf",
    "launch",
    "tests",
    "pyproject.toml",
    "constraints.txt",
    "LICENSE",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
)


def read_project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def read_requirements() -> list[Requirement]:
    """All requirements in pyproject.toml, including extras; references from one extra to another are left out."""
    project = read_project()
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [item for item in map(Requirement, lines) if item.name != "distprof"]


def read_constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def get_version(pin: Requirement) -> Version:
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"constraints.txt: {pin}: not an exact version"
    return Version(specifier.version)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    for module in ("build", "hatchling"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install -e '.[dev]'")
    missing = [name for name in SHIPPED if not (ROOT / name).exists()]
    assert not missing, f"cannot be built without {', '.join(missing)}"
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SHIPPED:  # a copy: building must not depend on what else lies in the checkout, nor write there
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    """The files of the wheel by name."""
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_every_file_of_the_package_and_conf(wheel: dict[str, bytes]) -> None:
    expected = {
        f"{prefix}{path.relative_to(ROOT).as_posix()}"
        for folder, prefix in (("distprof", ""), ("conf", "distprof/"))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"distprof/conf/config.yaml", "distprof/py.typed"} <= expected
    assert {name for name in wheel if ".dist-info/" not in name} == expected
    assert wheel["distprof/conf/config.yaml"] == (ROOT / "conf/config.yaml").read_bytes()


def test_the_wheel_says_what_it_is(wheel: dict[str, bytes]) -> None:
    info = f"distprof-{distprof.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel[f"{info}/METADATA"])
    assert (metadata["Version"], metadata["License-Expression"]) == (distprof.__version__, "Apache-2.0")
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert wheel[f"{info}/entry_points.txt"].decode().split("\n")[:2] == [
        "[console_scripts]",
        "distprof = distprof.__main__:main",
    ]
    assert wheel[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_an_unpacked_wheel_finds_its_configuration(wheel: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in wheel.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    program = "from distprof.config.choice import locate_conf; print(locate_conf())"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "distprof" / "conf")), done.stderr


def test_an_editable_installation_is_compiled_for_ranks_that_may_not_write_it(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    module = tmp_path / "distprof" / "room" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("ANSWER = 42\n")
    of_hook = runpy.run_path(str(ROOT / hooks["custom"]["path"]))["CompileEditable"]
    hook = of_hook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")
    hook.finalize("standard", {}, "")
    assert not [*tmp_path.rglob("*.pyc")]
    hook.finalize("editable", {}, "")
    assert [*tmp_path.rglob("*.pyc")] == [Path(importlib.util.cache_from_source(str(module)))]


def test_the_sdist_can_be_tested(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    needed = {"conf/config.yaml", "constraints.txt", "launch/test.sh", "tests/conftest.py", "tests/test_package.py"}
    needed |= {"docs/concepts.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/data/README.md"}
    assert needed <= names


def test_the_installed_version_is_the_version() -> None:
    try:
        installed = importlib.metadata.version("distprof")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("distprof is not installed here: pip install -e .")
    assert installed == distprof.__version__


def test_users_are_not_held_to_exact_versions() -> None:
    exact = [str(item) for item in read_requirements() if {part.operator for part in item.specifier} & {"==", "==="}]
    assert exact == []
    assert all(item.specifier for item in read_requirements()), "a requirement without a lower bound"


def test_every_requirement_is_pinned_within_its_range() -> None:
    pins = read_constraints()
    wrong = [
        str(item)
        for item in read_requirements()
        if (pin := pins.get(canonicalize_name(item.name))) is None or get_version(pin) not in item.specifier
    ]
    assert wrong == []


def test_the_releases_of_torch_that_are_tried_begin_with_the_lowest_promised_and_hold_the_one_pinned() -> None:
    listed = subprocess.run(
        ["bash", str(ROOT / "launch" / "test_torch.sh"), "--list"], capture_output=True, text=True, check=True
    )
    tried, pinned = [Version(line) for line in listed.stdout.split()], get_version(read_constraints()["torch"])
    (bound,) = next(item for item in read_requirements() if item.name == "torch").specifier
    assert bound.operator == ">=" and tried[0].release[:2] == Version(bound.version).release
    assert tried == sorted(tried) and pinned in tried
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Tested with torch {pinned} and the releases that" in readme


def test_constraints_leave_the_build_of_torch_to_the_machine() -> None:
    versions = {name: get_version(pin) for name, pin in read_constraints().items()}
    assert not [name for name, version in versions.items() if version.local]
    assert not [name for name in versions if name.startswith(("nvidia-cu", "nvidia-nccl", "triton"))]


def test_nvtx_is_held_where_older_nsight_systems_see_it() -> None:
    assert get_version(read_constraints()["nvtx"]) < Version("0.2.12")


def test_nothing_names_a_package_registry() -> None:
    """Where packages come from is the machine's business: an index in our files would override its settings."""
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / ".ci" / "run", *(ROOT / "launch").glob("*.sh")]
    options = ("index-url", "find-links", "--trusted-host", "-f http", "://")
    found = [f"{path.name}: {option}" for path in files if path.exists() for option in options if option in read(path)]
    assert found == []


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
