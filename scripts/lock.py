"""Write requirements/*.txt: the pinned packages with the hashes of their files.

build.txt   what builds this package and those that come as source
torch.txt   the CPU build of torch
torch-default.txt
            the default build of torch, for where pip is not offered the CPU build
app.txt     the other packages that the extra `app` needs; likewise ray.txt and slurm.txt
dev.txt     the other packages that the extra `dev` needs

Versions come from constraints.txt. Hashes are those of all files of a release, so they serve every
platform. The list of packages is resolved for Python 3.11 on the platform where this runs: another
one may need packages that are not in it. Torch stands alone because its builds have different
hashes and different dependencies. The one hash of the CPU build is that of the wheel in the
directory that PIP_FIND_LINKS names, for Python 3.11 on Linux with x86-64.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("app", "ray", "slurm", "dev")
RESOLVER = "uv==0.13.8"
"""The tool that resolves the requirements; pip itself lists the hashes of one platform only."""
TORCH = re.compile(r"^torch==\S+\+cpu( \\\n +--hash=\S+)+\n", re.MULTILINE)
"""The CPU build of torch with its hashes."""
HEADER = """\
# Written by scripts/lock from constraints.txt; do not edit. scripts/setup.sh installs it with pip's
# hash check, so a package that is not exactly the tested one is refused.
"""


def main() -> None:
    torch = ""
    with tempfile.TemporaryDirectory() as folder:
        resolver = install_resolver(Path(folder))
        write("build", compiled(resolver, ["-"], "setuptools"))
        for extra in EXTRAS:
            packages = compiled(resolver, ["--extra", extra, "pyproject.toml"])
            found = TORCH.search(packages)
            if found is None:
                sys.exit(
                    "scripts/lock: no CPU build of torch; name its directory in PIP_FIND_LINKS"
                )
            torch = found[0]
            write(extra, packages.replace(torch, ""))
    write("torch", torch)
    version = torch.split("+")[0]
    write("torch-default", compiled(resolver, ["--no-deps", "-"], version, local_wheels=False))


def install_resolver(folder: Path) -> Path:
    """Install uv into a folder of its own; returns the program."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, RESOLVER], check=True)
    return folder / "bin" / "uv"


def compiled(
    resolver: Path, arguments: list[str], requirement: str = "", *, local_wheels: bool = True
) -> str:
    """What uv resolves from its arguments and standard input, each package with its hashes.

    Args:
        resolver: the program.
        arguments: for `uv pip compile`.
        requirement: what stands on standard input.
        local_wheels: whether the directories of PIP_FIND_LINKS are searched, too.

    Returns:
        The requirements.
    """
    command = [resolver, "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate"]
    command += ["--no-header", "--python-version", "3.11", "--constraint", "constraints.txt"]
    directories = os.environ.get("PIP_FIND_LINKS", "").split() if local_wheels else []
    for directory in directories:
        command += ["--find-links", directory]
    result = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        input=requirement,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return result.stdout


def write(name: str, content: str) -> None:
    """Write one of the requirements files."""
    target = ROOT / "requirements" / f"{name}.txt"
    target.parent.mkdir(exist_ok=True)
    target.write_text(HEADER + content)
    print(f"{target.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
