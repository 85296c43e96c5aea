"""A real Slurm on this machine alone: controller, one node and authentication, on loopback.

Everything belongs to the current user and is in a temporary folder, with keys and ports of its own,
so that a Slurm that is installed here is not disturbed. There is no accounting database, as on many
small clusters, and no systemd or control group is needed.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PACKAGES = {
    "sbatch": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "munged": "munge",
}
"""The programs that are needed, and their Debian packages."""
NODE = "node"
CPUS = 2
PATIENCE = 60.0
"""Seconds in which the node must be ready, and jobs must end."""
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
# Requeued jobs wait until their old credentials have expired, two minutes by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
# Listen on loopback only.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class NotStarted(Exception):
    """Slurm does not start on this machine, with the reason."""


def install() -> None:
    """Install the packages that are missing; fails with their names if that is impossible."""
    missing = [package for program, package in PACKAGES.items() if _program(program) is None]
    if not missing:
        return
    install = ["apt-get", "install", "--no-install-recommends", "-y", "-qq", *missing]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"run `{' '.join(install)}` as root: {done.stderr[-500:]}"


@contextmanager
def real_slurm() -> Iterator[Path]:
    """Start Slurm, and stop it with all its jobs.

    Returns:
        A context manager whose value is the file that SLURM_CONF must name. It sets SLURM_CONF.

    Raises:
        NotStarted: if the daemons do not run on this machine.
    """
    # The path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    before = os.environ.get("SLURM_CONF")
    configuration = _write_configuration(folder)
    os.environ["SLURM_CONF"] = str(configuration)
    try:
        with ExitStack() as daemons:
            for words in _daemons(folder):
                daemons.enter_context(_running(words, folder))
            _wait_for_node(folder)
            try:
                yield configuration
            finally:
                _end_jobs()
    finally:
        del os.environ["SLURM_CONF"]
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _write_configuration(folder: Path) -> Path:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    path = folder / "slurm.conf"
    path.write_text(
        CONFIGURATION.format(
            user=getpass.getuser(),
            folder=folder,
            controller_port=_free_port(),
            node_port=_free_port(),
            node=NODE,
            host=socket.gethostname().split(".")[0],
            cpus=CPUS,
        )
    )
    return path


def _daemons(folder: Path) -> list[list[str]]:
    """The command lines of the daemons, each to run in the foreground."""
    munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key"]
    munge += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"]
    munge += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
    return [munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", NODE]]


@contextmanager
def _running(words: list[str], folder: Path) -> Iterator[None]:
    """A context in which a daemon runs."""
    program = _program(words[0])
    assert program is not None
    with open(folder / f"{words[0]}.out", "wb") as output:
        process = subprocess.Popen(
            [program, *words[1:]], stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_node(folder: Path) -> None:
    words = ["sinfo", "--noheader", "--format=%T"]
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done = subprocess.run(words, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    lines = []
    for path in sorted(folder.glob("*.out")):
        lines += [f"{path.stem}: {line}" for line in path.read_text().splitlines()[-3:]]
    raise NotStarted(f"the node is {done.stdout.strip()!r}; {' / '.join(lines)}")


def queue() -> list[str]:
    """The ids of all jobs that wait or run."""
    words = ["squeue", "--noheader", "--array", "--format=%i"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def _end_jobs() -> None:
    """Kill all jobs of this Slurm, and wait until they are gone."""
    deadline = time.monotonic() + PATIENCE
    while (ids := queue()) and time.monotonic() < deadline:
        subprocess.run(["scancel", "--quiet", "--signal=KILL", "--state=RUNNING", *ids])
        subprocess.run(["scancel", "--quiet", *ids])
        time.sleep(1)


def _program(name: str) -> str | None:
    """The path of a program; daemons are not on every user's path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
