//! SQLite with its whole database in memory.

use super::{Product, Workload, found};
use crate::contract::{Size, Under};
use crate::launch::Launch;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict};
use std::time::Duration;

/// A database of 500 MB with an index, changed and asked.
pub const SQLITE: Workload = Workload {
    name: "sqlite",
    about: |size| format!("SQLite, in memory, {} rows of about 500 bytes", rows(size)),
    needs: &[("sqlite3", "sqlite3")],
    prepare,
    run,
};

fn prepare(sandbox: &Sandbox, size: Size) -> Verdict {
    let script = sandbox.join("work.sql");
    std::fs::write(&script, work(rows(size))).at("write", &script)
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let outcome = Launch::new(sandbox, found("sqlite3")?)
        .args(["-batch", "-bail", ":memory:"])
        .stdin(sandbox.join("work.sql"))
        .limit(Duration::from_secs(size.scale(1800, 400)))
        .run(under)?
        .succeeded()?;
    Ok(Product::printed(outcome))
}

fn rows(size: Size) -> u64 {
    size.scale(800_000, 110_000)
}

/// Fills, indexes, asks in and out of order, changes in a transaction that is rolled
/// back and one that is not, and checks the database's own structure.
fn work(rows: u64) -> String {
    let asked = rows / 10;
    format!(
        "PRAGMA temp_store = MEMORY;
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, grp INTEGER, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO item SELECT i, printf('%016x', (i * 2654435761) % 4294967296), i % 97,
  substr(replace(hex(zeroblob(60)), '00', printf('%08x', (i * 40503) % 1000003)), 1, 440) FROM n;
SELECT count(*), sum(grp), sum(length(body)), max(name) FROM item;
CREATE INDEX item_name ON item(name);
WITH RECURSIVE n(i, x) AS (SELECT 1, 12345 UNION ALL
  SELECT i + 1, (x * 1103515245 + 12345) % 2147483648 FROM n WHERE i < {asked})
SELECT count(*), sum(grp), sum(unicode(substr(body, 1 + i % 400))) FROM n JOIN item ON id = 1 + x % {rows};
BEGIN;
UPDATE item SET body = body || 'changed' WHERE id % 3 = 0;
DELETE FROM item WHERE id % 5 = 0;
SELECT count(*), sum(length(body)) FROM item;
ROLLBACK;
SELECT count(*), sum(length(body)) FROM item;
UPDATE item SET name = printf('%016x', (id * 48271) % 2147483647) WHERE id % 7 = 0;
DELETE FROM item WHERE id % 11 = 0;
SELECT grp, count(*), min(name), max(name), sum(length(body)) FROM item GROUP BY grp ORDER BY grp;
SELECT id, name FROM item ORDER BY name LIMIT 50 OFFSET {asked};
PRAGMA integrity_check;
"
    )
}
