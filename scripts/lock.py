"""Write requirements/EXTRA.txt: the pinned packages that an extra needs, with hashes.

requirements/build.txt holds what is needed to build packages that come as source.

Versions come from constraints.txt. Hashes are those of all files of a release, so that the same
requirements serve every platform. They come from the index (and the wheel directories) that pip is
configured to use.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("app", "dev")
RESOLVER = "uv==0.13.8"
"""The tool that resolves the requirements; pip itself lists the hashes of one platform only."""
BUILD = "setuptools"
"""What builds this package and those that come as source; requirements/build.txt has its hashes."""
LOCAL_VERSION = re.compile(r"^(?P<name>[\w.-]+)==(?P<public>[^+\s]+)\+\S+", re.MULTILINE)
"""A requirement of a local build, such as torch==2.13.0+cpu."""
HEADER = """\
# Written by scripts/lock from constraints.txt; do not edit. Installed by scripts/setup.sh with
# pip's hash check, so a package that is not exactly the tested one is refused.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        resolver = install_resolver(Path(folder))
        write("build", compiled(resolver, ["--constraint", "constraints.txt", "-"], BUILD))
        for extra in EXTRAS:
            write(extra, locked(resolver, extra))


def write(name: str, content: str) -> None:
    """Write one of the requirements files."""
    target = ROOT / "requirements" / f"{name}.txt"
    target.parent.mkdir(exist_ok=True)
    target.write_text(HEADER + content)
    print(f"{target.relative_to(ROOT)}: written")


def install_resolver(folder: Path) -> Path:
    """Install uv into a folder of its own; returns the program."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, RESOLVER], check=True)
    return folder / "bin" / "uv"


def locked(resolver: Path, extra: str) -> str:
    """The requirements of an extra of this package, with hashes.

    Args:
        resolver: the program `uv`.
        extra: the extra.

    Returns:
        The contents of a requirements file.
    """
    arguments = ["--extra", extra, "--constraint", "constraints.txt", "pyproject.toml"]
    directories = os.environ.get("PIP_FIND_LINKS", "").split()
    for directory in directories:
        arguments = ["--find-links", directory, *arguments]
    text = compiled(resolver, arguments)
    for match in LOCAL_VERSION.finditer(text):
        # A local build was found in a directory of wheels. The requirement names the public
        # version, which pip takes it for, and the hashes of the public files are added to its own.
        public = f"{match['name']}=={match['public']}"
        hashes = compiled(resolver, ["--no-deps", "-"], public).partition("\n")[2]
        text = text.replace(match[0] + " \\\n", f"{public} \\\n{hashes.rstrip()} \\\n")
    return text


def compiled(resolver: Path, arguments: list[str], requirement: str = "") -> str:
    """What uv resolves from its arguments and standard input, each package with its hashes."""
    command = [resolver, "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate"]
    command += ["--no-header", "--python-version", "3.11", *arguments]
    result = subprocess.run(
        command, cwd=ROOT, input=requirement, stdout=subprocess.PIPE, text=True, check=True
    )
    return result.stdout


if __name__ == "__main__":
    main()
