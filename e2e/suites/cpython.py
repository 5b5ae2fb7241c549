"""CPython's own regression tests, a unit for each module of the package `test`."""

import xml.etree.ElementTree

import packages
from compare import FAILED, PASSED, SKIPPED, Unit

PYTHON = "/usr/bin/python3"
# Not about the interpreter or its memory: windows, sounds and a desktop.
WITHOUT = {"test_idle", "test_tk", "test_ttk_guionly", "test_ttk_textonly", "test_winreg", "test_winsound"}


FRAMES = "32M"
# Seconds of a unit natively, and under the pager, which Python itself then ends with a trace. Compression with
# tables of several times the frames (test_lzma) takes minutes.
TIMEOUT = 300
PAGED_TIMEOUT = 4 * TIMEOUT


def units(folder):
    version = packages.output([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    packages.install(f"libpython{version}-testsuite")
    listed = packages.output([PYTHON, "-m", "test", "--list-tests"]).split()
    return [unit(module) for module in listed if module not in WITHOUT]


def unit(module):
    command = [PYTHON, "-m", "test", "--timeout", str(PAGED_TIMEOUT), "--junit-xml", "{folder}/results.xml", module]
    return Unit(module, command, lambda run: cases(module, run), timeout=TIMEOUT)


def cases(module, run):
    """The outcomes in the results file; a module without one has crashed or was skipped whole."""
    results = run.folder / "results.xml"
    if not results.exists():
        skipped = f"{module} skipped" in run.log
        return {module: SKIPPED if skipped else run.outcome()}
    found = {}
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        found[case.get("name")] = FAILED if failed else SKIPPED if skipped else PASSED
    found[f"{module} (exit status)"] = run.outcome()
    return found
