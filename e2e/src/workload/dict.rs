//! CPython building and checking a dict: many small objects, reference counts that make
//! every read a write.

use super::{Product, Workload, found};
use crate::contract::{Size, Under};
use crate::launch::Launch;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict};
use std::time::Duration;

/// A dict of five million entries.
pub const DICT: Workload = Workload {
    name: "dict",
    about: |size| {
        format!(
            "CPython builds and checks a dict of {} entries",
            entries(size)
        )
    },
    needs: &[("python3", "python3")],
    prepare,
    run,
};

fn prepare(sandbox: &Sandbox, _: Size) -> Verdict {
    let script = sandbox.join("dict.py");
    std::fs::write(&script, include_str!("dict.py")).at("write", &script)
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let outcome = Launch::new(sandbox, found("python3")?)
        .args(["-I", "dict.py"])
        .arg(entries(size).to_string())
        .limit(Duration::from_secs(size.scale(1800, 400)))
        .run(under)?
        .succeeded()?;
    Ok(Product::printed(outcome))
}

fn entries(size: Size) -> u64 {
    size.scale(5_000_000, 500_000)
}
