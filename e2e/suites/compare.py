"""Runs a unit of a test suite natively and under `selfpage run`, and compares case by case.

A unit is one command; a case is what the suite itself counts. A case differs where it passes
natively twice and does not pass under the pager.

Each run has a folder, a PID namespace and a network namespace of its own, so that nothing of a
run outlives it and no two runs share a port.
"""

import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"

# The first process of the PID namespace: brings the loopback interface up, reaps, and keeps the
# command's exit status.
FIRST_PROCESS = 'ip link set lo up; "$@"; exit $?'


class Skip(Exception):
    """A suite or unit that cannot run here, with the reason."""


@dataclasses.dataclass
class Run:
    """The result of one run of a unit."""

    folder: pathlib.Path
    log: str
    status: int | None  # None after a timeout

    def outcome(self):
        """The outcome of a unit that counts by its exit status alone."""
        return PASSED if self.status == 0 else FAILED


@dataclasses.dataclass
class Unit:
    """One command of a suite, which reports the outcomes of its cases."""

    name: str
    command: list  # its parts may name {folder}
    cases: callable  # Run -> {case: outcome}
    timeout: int  # seconds, natively; under the pager four times that
    prepare: callable = lambda folder: None
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Comparison:
    """A unit's outcomes natively and under the pager."""

    unit: Unit
    native: dict
    paged: dict
    differing: list
    unsteady: list
    logs: list


def run(unit, prefix, timeout, kept):
    """Runs a unit behind `prefix` and returns its `Run`; the log is kept in the file `kept`."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="selfpage-e2e-suites-", dir="/var/tmp"))
    folder.chmod(0o777)
    temporary = folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    unit.prepare(folder)
    command = [str(part).replace("{folder}", str(folder)) for part in unit.command]
    isolated = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net"]
    environment = dict(os.environ, TMPDIR=str(temporary), HOME=str(folder), LC_ALL="C.UTF-8")
    environment.update(unit.environment)
    with open(kept, "wb") as log:
        process = subprocess.Popen(
            isolated + ["bash", "-c", FIRST_PROCESS, "first"] + prefix + command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            status = None
    text = pathlib.Path(kept).read_text(errors="replace")
    return Run(folder, text, status)


def outcomes(unit, prefix, timeout, kept):
    """Runs a unit and returns the outcomes of its cases."""
    done = run(unit, prefix, timeout, kept)
    try:
        cases = unit.cases(done)
        if done.status is None:
            cases[f"{unit.name} (ends in {timeout} s)"] = FAILED
        return cases
    finally:
        shutil.rmtree(done.folder, ignore_errors=True)


def failing(native, paged):
    """Cases that pass in `native` and do not in `paged`."""
    return [case for case, outcome in native.items() if outcome == PASSED and paged.get(case) != PASSED]


def compare(unit, selfpage, logs):
    """Compares a unit's run behind the words `selfpage` with its run natively."""
    name = unit.name.replace("/", "-")
    files = [logs / f"{name}.native", logs / f"{name}.paged", logs / f"{name}.native-again"]
    native = outcomes(unit, [], unit.timeout, files[0])
    paged = outcomes(unit, selfpage, 4 * unit.timeout, files[1])
    differing = failing(native, paged)
    unsteady = []
    if differing:
        again = outcomes(unit, [], unit.timeout, files[2])
        unsteady = [case for case in differing if again.get(case) != PASSED]
        differing = [case for case in differing if case not in unsteady]
    return Comparison(unit, native, paged, differing, unsteady, files)
