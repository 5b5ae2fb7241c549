//! GNU sort of a file it holds in memory whole.

use super::{Product, Workload, found};
use crate::contract::{MIB, Size, Under};
use crate::launch::Launch;
use crate::noise::Noise;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict};
use std::io::Write;
use std::time::Duration;

/// `sort -S 700M` of a gigabyte.
pub const SORT: Workload = Workload {
    name: "sort",
    about: |size| {
        format!(
            "GNU sort -S 700M of a file of {} MiB",
            input_bytes(size) / MIB
        )
    },
    needs: &[("sort", "coreutils")],
    prepare,
    run,
};

fn prepare(sandbox: &Sandbox, size: Size) -> Verdict {
    let path = sandbox.join("input");
    let file = std::fs::File::create(&path).at("make", &path)?;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, file);
    let (mut noise, mut line, mut written) = (Noise::new(1), Vec::new(), 0);
    while written < input_bytes(size) {
        line.clear();
        // Long lines: a merge sort reads lines in random order, and what it costs is a
        // fault a line.
        let letters = 256 + noise.below(512) as usize;
        noise.text(letters, &mut line);
        line.push(b'\n');
        out.write_all(&line).at("write", &path)?;
        written += line.len() as u64;
    }
    out.flush().at("write", &path)
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let outcome = Launch::new(sandbox, found("sort")?)
        .args("-S 700M --parallel=2 -T tmp -o sorted input".split(' '))
        .variable("LC_ALL", "C")
        .limit(Duration::from_secs(size.scale(1800, 400)))
        .run(under)?
        .succeeded()?;
    Product::file(&sandbox.join("sorted"), outcome)
}

fn input_bytes(size: Size) -> u64 {
    size.scale(1024, 64) * MIB
}
