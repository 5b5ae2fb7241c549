//! Our own program: eight threads write a pattern and check each other's.

use super::{Product, Workload};
use crate::contract::{MIB, Size, Under};
use crate::hazard;
use crate::launch::Launch;
use crate::sandbox::Sandbox;
use crate::verdict::Verdict;
use std::time::Duration;

/// The hazard of the same purpose, at the size of a workload.
pub const THREADS: Workload = Workload {
    name: "threads",
    about: |size| {
        format!(
            "8 threads write a pattern over {} MiB and check it",
            bytes(size) / MIB
        )
    },
    needs: &[("cc", "gcc")],
    prepare,
    run,
};

fn prepare(sandbox: &Sandbox, _: Size) -> Verdict {
    hazard::build(sandbox, PROGRAM, &[]).map(drop)
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let outcome = Launch::new(sandbox, sandbox.join(PROGRAM))
        .variable("HAZARD_MB", (bytes(size) / MIB).to_string())
        .limit(Duration::from_secs(size.scale(1800, 400)))
        .run(under)?
        .succeeded()?;
    Ok(Product::printed(outcome))
}

const PROGRAM: &str = "eight_threads_write_and_check";

fn bytes(size: Size) -> u64 {
    size.scale(640, 128) * MIB
}
