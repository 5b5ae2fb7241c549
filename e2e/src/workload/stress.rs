//! stress-ng's memory stressor: dozens of access patterns, each verified, in processes
//! it forks.

use super::{Product, Workload, found};
use crate::contract::{MIB, Size, Under};
use crate::launch::Launch;
use crate::sandbox::Sandbox;
use crate::verdict::{Verdict, ensure};
use std::time::Duration;

/// `stress-ng --vm 2 --vm-bytes 512M --verify`.
pub const STRESS: Workload = Workload {
    name: "stress",
    about: |size| {
        format!(
            "stress-ng --vm 2 --vm-bytes {}M --verify",
            bytes(size) / MIB
        )
    },
    needs: &[("stress-ng", "stress-ng")],
    prepare,
    run,
};

fn prepare(_: &Sandbox, _: Size) -> Verdict {
    Ok(())
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let seconds = size.scale(60, 12);
    let outcome = Launch::new(sandbox, found("stress-ng")?)
        .args(["--vm", "2", "--verify", "--no-rand-seed", "--vm-bytes"])
        .arg(bytes(size).to_string())
        .arg("--timeout")
        .arg(format!("{seconds}s"))
        .args(["--temp-path", "tmp"])
        // A pattern's pass is not cut short by the time limit.
        .limit(Duration::from_secs(seconds + size.scale(900, 300)))
        .run(under)?
        .succeeded()?;
    let said = format!("{}{}", outcome.text(), outcome.stderr);
    ensure(
        !said.contains("fail:") && said.contains("successful run"),
        || format!("stress-ng failed:\n{said}"),
    )?;
    // It counts its work in a given time: only its verdict is comparable.
    Ok(Product {
        result: "verified".into(),
        outcome,
    })
}

fn bytes(size: Size) -> u64 {
    size.scale(512, 96) * MIB
}
