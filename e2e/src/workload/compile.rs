//! gcc -O2 on a large generated file: a driver, a compiler with a garbage collector of
//! its own over mmap, an assembler.

use super::{Product, Workload, found};
use crate::contract::{Size, Under};
use crate::launch::Launch;
use crate::noise::Noise;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict};
use std::fmt::Write;
use std::time::Duration;

/// A file of thousands of functions and tables.
pub const COMPILE: Workload = Workload {
    name: "compile",
    about: |size| {
        format!(
            "gcc -O2 on a generated C file of {} functions",
            functions(size)
        )
    },
    needs: &[("gcc", "gcc")],
    prepare,
    run,
};

fn prepare(sandbox: &Sandbox, size: Size) -> Verdict {
    let path = sandbox.join("large.c");
    std::fs::write(
        &path,
        source(functions(size), size.scale(2_000_000, 250_000)),
    )
    .at("write", &path)
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let outcome = Launch::new(sandbox, found("gcc")?)
        .args("-O2 -c -frandom-seed=1 -w large.c -o large.o".split(' '))
        .limit(Duration::from_secs(size.scale(1800, 400)))
        .run(under)?
        .succeeded()?;
    Product::file(&sandbox.join("large.o"), outcome)
}

fn functions(size: Size) -> u64 {
    size.scale(1_200, 60)
}

/// Functions with loops, branches and calls to each other, and a table of `numbers`
/// initialisers, which is what makes generated files large to compile.
fn source(functions: u64, numbers: u64) -> String {
    let mut noise = Noise::new(3);
    let mut text = String::from("typedef unsigned long u;\nstatic const u table[] = {\n");
    for i in 0..numbers {
        let end = if i % 16 == 15 { '\n' } else { ' ' };
        let _ = write!(text, "{},{end}", noise.word() >> 40);
    }
    text.push_str("};\n");
    for f in 0..functions {
        let _ = writeln!(text, "u f{f}(u a, u b, u *p) {{ u x = a, y = b;");
        for _ in 0..4 {
            let (k, m, c) = (noise.below(60) + 1, noise.below(64), noise.word() >> 34);
            let _ = writeln!(
                text,
                " for (u i = 0; i < {k}; i++) {{ x ^= (y << {m}) + p[i & 7]; if (x % {} == 1) y += \
                 table[(x + i) % {numbers}]; else p[(x ^ i) & 7] -= x * {c}ul; }}",
                k + 2
            );
        }
        if f > 0 {
            let callee = noise.below(f);
            let _ = writeln!(text, " if (x & 64) y ^= f{callee}(y, x, p);");
        }
        text.push_str(" return x ^ y; }\n");
    }
    text
}
