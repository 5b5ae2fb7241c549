"""PostgreSQL: its regression tests, and pgbench over several connections."""

import os
import pwd
import re
import shutil

import packages
from compare import FAILED, PASSED, SKIPPED, Unit

FRAMES = "64M"
# The server refuses to be root.
USER = "postgres"
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]

# A server of its own, filled and queried by pgbench, then compared with itself.
PGBENCH = """
set -e
PATH={programs}:$PATH
initdb -A trust -D data > initdb.log
pg_ctl -D data -o '-k {folder} -c listen_addresses= -c shared_buffers=16MB' -l server.log -w start
trap 'pg_ctl -D data -m fast -w stop; cat server.log' EXIT
export PGHOST={folder} PGDATABASE=postgres
pgbench -i -s 5 -q
pgbench -n -c 8 -j 2 -t 200 --max-tries 100
pgbench -n -c 4 -j 2 -t 200 -S -M prepared
sum() { psql -Atc "select sum($1) from $2"; }
test "$(sum abalance pgbench_accounts)" = "$(sum tbalance pgbench_tellers)"
test "$(sum abalance pgbench_accounts)" = "$(sum delta pgbench_history)"
test "$(psql -Atc 'select count(*) from pgbench_history')" = 1600
"""


def units(folder):
    packages.install("postgresql")
    (server,) = packages.output(["pg_config", "--version"]).split()[1].split(".")[:1]
    packages.install("gcc", f"postgresql-server-dev-{server}")
    config = f"/usr/lib/postgresql/{server}/bin/pg_config"
    programs = packages.output([config, "--bindir"]).strip()
    bench = ["bash", "-c", PGBENCH.replace("{programs}", programs)]
    yield Unit("pgbench", AS_USER + bench, lambda run: {"pgbench": run.outcome()}, 120, own)
    source = packages.source(f"postgresql-{server}", folder)
    driver = packages.output([config, "--pgxs"]).strip().replace("makefiles/pgxs.mk", "test/regress/pg_regress")
    regress = [driver, f"--bindir={programs}", "--inputdir=regress", "--outputdir=.", "--dlpath=regress"]
    regress += ["--temp-instance=instance", "--no-locale", "--max-connections=4"]
    regress += ["--schedule=regress/parallel_schedule"]
    yield Unit("regress", AS_USER + regress, cases, 600, lambda folder: prepare(source, config, folder))


def own(folder):
    user = pwd.getpwnam(USER)
    os.chown(folder, user.pw_uid, user.pw_gid)


def prepare(source, config, folder):
    """The tests in a folder of the server's user, with their library of C functions."""
    own(folder)
    tests = folder / "regress"
    shutil.copytree(source / "src/test/regress", tests)
    headers = packages.output([config, "--includedir-server"]).strip()
    libraries = packages.output([config, "--pkglibdir"]).strip()
    host = packages.output(["gcc", "-dumpmachine"]).strip()
    compiler = ["gcc", "-O2", "-fPIC", "-shared", f"-I{headers}", f'-DHOST_TUPLE="{host}"', '-DDLSUFFIX=".so"']
    packages.output([*compiler, tests / "regress.c", "-o", tests / "regress.so"])
    for library in ["refint.so", "autoinc.so"]:
        shutil.copy(f"{libraries}/{library}", tests)
    packages.output(["chown", "-R", USER, folder])


def cases(run):
    """The outcomes of the lines `test NAME ... ok 5 ms`, and of the lines of a group of tests."""
    words = {"ok": PASSED, "FAILED": FAILED, "failed": FAILED}
    found = {"regress (exit status)": run.outcome()}
    for name, word in re.findall(r"^(?:test)?\s+(\w[\w.]*)\s+\.\.\. (\w+)", run.log, re.M):
        found[name] = words.get(word, SKIPPED)
    return found
