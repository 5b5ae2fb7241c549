//! PostgreSQL with most of its database in shared memory: filled by pgbench, then updated by eight connections and
//! read by four; its own check of balances is the result.

use super::arm::Unpaged;
use super::program::Workload;
use crate::env::find_program;
use crate::prelude::*;
use std::path::PathBuf;

/// The user that the server runs as where this process is root, which it refuses.
const USER: &str = "postgres";

/// Rows by the 100,000 (pgbench's scale) for each GiB of shared memory, which they fill [896 MiB].
const SCALE_PER_GIB: u64 = 60;

/// Transactions: updates, and reads of one row.
const UPDATES: u64 = 16_000;
const READS: u64 = 80_000;

/// Processes that page much at a time: the others wait, and hold little. The three that compile a sum have 8 MiB of
/// relocations each in libLLVM's private pages; those of other libraries are 1 MiB in each of a dozen.
const UNPAGED: Unpaged = Unpaged {
    processes: 6,
    bytes: 36 << 20,
};

/// Written to a log, and not waited for: that cost is the disk's, and the same in all arms.
const SCRIPT: &str = r#"
set -e
cd "$1"
PATH="$2:$PATH"
rm -rf data
initdb -A trust -D data > initdb.log
pg_ctl -D data -l server.log -w start > start.log -o "-k $1 -c listen_addresses= -c shared_buffers=$3MB \
  -c max_wal_size=4GB -c synchronous_commit=off -c fsync=off -c autovacuum=off"
trap 'pg_ctl -D data -m immediate -w stop > stop.log' EXIT
export PGHOST="$1" PGDATABASE=postgres
pgbench -i -s "$4" -q 2> fill.log
pgbench -n -c 8 -j 2 -t "$5" --max-tries 100 > update.log 2>&1
pgbench -n -c 4 -j 2 -t "$6" -S -M prepared > read.log 2>&1
sum() { psql -Atc "select sum($1) from $2"; }
test "$(sum abalance pgbench_accounts)" = "$(sum tbalance pgbench_tellers)"
test "$(sum abalance pgbench_accounts)" = "$(sum delta pgbench_history)"
psql -Atc 'select count(*) from pgbench_history'
"#;

/// The server and its client, in a folder of their own.
pub fn prepare(env: &TestEnv, mib: u64) -> Result<Workload> {
    let programs = programs()?;
    let folder = env.file("postgres")?;
    std::fs::create_dir(&folder).at("make", &folder)?;
    let mut command = Command::new("bash");
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let chown = Command::new("chown").arg(USER).arg(&*folder).status();
        if !chown.doing("run chown")?.success() {
            bail!(unavailable(format!(
                "there is no user {USER} here: apt-get install postgresql"
            )));
        }
        command = Command::new("setpriv");
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
        command.args(["--clear-groups", "bash"]);
    }
    let scale = (mib * SCALE_PER_GIB / 1024).max(1);
    command
        .args(["-c", SCRIPT, "bash"])
        .arg(&*folder)
        .arg(programs);
    command.args([mib, scale, UPDATES / 8, READS / 4].map(|number| number.to_string()));
    Ok(Workload {
        unpaged: UNPAGED,
        changes_user: is_root,
        files: vec![folder],
        ..Workload::of(command)
    })
}

/// The folder of the server's programs.
fn programs() -> Result<PathBuf> {
    let lacking = || unavailable("there is no postgres here: apt-get install postgresql");
    let installed = std::fs::read_dir("/usr/lib/postgresql").map_err(|_| lacking())?;
    let newest = installed
        .flatten()
        .map(|version| version.path().join("bin"));
    let newest = newest
        .filter(|folder| folder.join("postgres").is_file())
        .max();
    find_program("setpriv", "util-linux")?;
    newest.ok_or_else(lacking)
}
