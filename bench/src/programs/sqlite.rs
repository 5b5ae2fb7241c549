//! SQLite with its whole database in memory: filled, indexed twice, grouped, read by an index.

use super::program::Workload;
use crate::env::find_program;
use crate::prelude::*;

/// Rows for each MiB that it takes [234 MiB with 1.5 million, SQLite 3.40].
const ROWS_PER_MIB: u64 = 6_400;

/// The program and its script.
pub fn prepare(env: &TestEnv, mib: u64) -> Result<Workload> {
    let script = env.file("sql")?;
    std::fs::write(&script, work(mib * ROWS_PER_MIB)).at("write", &script)?;
    let mut command = Command::new(find_program("sqlite3", "sqlite3")?);
    command.args(["-batch", "-bail", ":memory:"]);
    command.arg(format!(".read {}", script.display()));
    Ok(Workload {
        files: vec![script],
        ..Workload::of(command)
    })
}

/// Products come out of order, customers by the hundred.
fn work(rows: u64) -> String {
    format!(
        "PRAGMA temp_store = MEMORY;
CREATE TABLE sale (id INTEGER PRIMARY KEY, customer INTEGER, product TEXT, price INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO sale SELECT i, i * 2654435761 % 20011,
  printf('%010x-product-%010d', i * 2654435761 % 1099511627776, i), i * 40503 % 10007 FROM n;
CREATE INDEX by_customer ON sale(customer);
CREATE INDEX by_product ON sale(product);
SELECT customer % 100, count(*), sum(price), max(product) FROM sale GROUP BY customer % 100 ORDER BY 1;
SELECT count(*), sum(length(product)), sum(price) FROM sale INDEXED BY by_customer WHERE customer < 2000;
SELECT count(*), min(product), max(product) FROM (SELECT product FROM sale ORDER BY product);
"
    )
}
