"""Redis's own tests in Tcl, a unit for each of its test files."""

import re
import shutil

import packages
from compare import FAILED, PASSED, SKIPPED, Unit

FRAMES = "32M"
PROGRAMS = ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"]
# Hours of random corruption, which other units have a part of.
WITHOUT = {"integration/corrupt-dump-fuzzer"}


def units(folder):
    packages.install("redis-server", "redis-tools", "tcl")
    source = packages.source("redis-server", folder)
    listed = packages.output(["./runtest", "--list-tests"], cwd=source).split()
    return [unit(source, name) for name in listed if name not in WITHOUT]


def unit(source, name):
    command = ["sh", "-c", f"cd redis && ./runtest --clients 1 --single {name} --dont-clean"]
    return Unit(name, command, lambda run: cases(name, run), 300, lambda folder: prepare(source, folder))


def prepare(source, folder):
    """The tests run in a copy of their source, with the installed programs where it has its own."""
    copy = folder / "redis"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("deps", "src"))
    (copy / "src").mkdir()
    for program in filter(shutil.which, PROGRAMS):
        (copy / "src" / program).symlink_to(shutil.which(program))


def cases(name, run):
    """The outcomes of the lines `[ok]: CASE (5 ms)` and the like."""
    found = {}
    colours = re.compile(r"\x1b\[[0-9;]*m")
    words = {"ok": PASSED, "err": FAILED, "exception": FAILED, "skip": SKIPPED, "ignore": SKIPPED, "timeout": FAILED}
    for line in run.log.splitlines():
        match = re.match(r"\[(\w+)\]: (.*?)(?: \(\d+ ms\))?$", colours.sub("", line))
        if match and match[1] in words:
            found[match[2]] = words[match[1]]
    found[f"{name} (exit status)"] = run.outcome()
    return found
