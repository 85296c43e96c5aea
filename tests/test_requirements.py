"""requirements/*.txt hold the versions of constraints.txt, each with the hashes of its files."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGE = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>( \\\n +--hash=\S+)*)$", re.M)


def read_pins(path: Path) -> dict[str, tuple[str, int]]:
    """The version and the number of hashes of every package in a requirements file."""
    pins = {}
    for match in PACKAGE.finditer(path.read_text()):
        name = canonicalize_name(match["name"])
        pins[name] = (match["version"], match["hashes"].count("--hash=sha256:"))
    return pins


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = {name: pin[0] for name, pin in read_pins(ROOT / "constraints.txt").items()}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda p: p.stem
)
def test_versions_are_those_of_the_constraints_and_every_package_has_a_hash(path):
    pins = read_pins(path)
    lines = [line for line in path.read_text().splitlines() if re.match(r"\w", line)]
    assert len(pins) == len(lines) > 0
    for name, (version, n_hashes) in pins.items():
        assert version.removesuffix("+cpu") == CONSTRAINTS[name]
        assert n_hashes >= 1, name


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_everything_that_an_extra_asks_for_is_listed_in_a_version_that_it_allows(extra):
    pins = read_pins(ROOT / "requirements" / f"{extra}.txt")
    pins |= read_pins(ROOT / "requirements" / "torch.txt")
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name != PROJECT["name"]:
            version, _ = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), line


def test_the_default_build_of_torch_has_the_hashes_of_all_its_files():
    version, n_hashes = read_pins(ROOT / "requirements" / "torch-default.txt")["torch"]
    cpu_version, _ = read_pins(ROOT / "requirements" / "torch.txt")["torch"]
    assert f"{version}+cpu" == cpu_version
    assert n_hashes > 1


def test_every_extra_has_requirements():
    for extra in PROJECT["optional-dependencies"]:
        assert (ROOT / "requirements" / f"{extra}.txt").exists()
