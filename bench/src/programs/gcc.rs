//! gcc -O2 of one large file: the compiler's own garbage-collected heap, grown function by function.

use super::arm::Unpaged;
use super::program::Workload;
use crate::env::find_program;
use crate::prelude::*;
use std::fmt::Write;

/// Functions for each MiB that the compiler takes [300 MiB with 300, gcc 12].
const FUNCTIONS_PER_MIB: u64 = 1;

/// Branches of a function.
const BRANCHES: u64 = 16;

/// The compiler and a source file. Its assembly is its output, so the driver and the compiler are all
/// the processes there are.
pub fn prepare(env: &TestEnv, mib: u64) -> Result<Workload> {
    let input = env.file("c")?;
    std::fs::write(&input, source(mib * FUNCTIONS_PER_MIB)).at("write", &input)?;
    let mut command = Command::new(find_program("gcc", "gcc")?);
    command.args(["-O2", "-w", "-S", "-frandom-seed=1", "-o", "-"]);
    command.arg(&*input);
    Ok(Workload {
        input: Some(input),
        unpaged: Unpaged {
            processes: 2,
            bytes: 0,
        },
        ..Workload::of(command)
    })
}

/// Interpreters of made-up instructions: a loop over a switch each.
fn source(functions: u64) -> String {
    let mut text = String::new();
    for f in 0..functions {
        let cells = 8 + f % 9;
        let _ = writeln!(
            text,
            "struct state{f} {{ int cells[{cells}]; double sum; }};"
        );
        let _ = writeln!(
            text,
            "int run{f}(struct state{f} *s, const char *code, int count) {{\n int r = 0;\n \
             for (int i = 0; i < count; i++) switch (code[i] & {}) {{",
            BRANCHES - 1
        );
        for b in 0..BRANCHES {
            let _ = writeln!(
                text,
                " case {b}: r = r * {} + s->cells[(i + {b}) % {cells}];\n  \
                 if (r > {}) {{ s->sum += r; s->cells[{}] ^= r >> {}; }}\n  break;",
                31 + f % 7 + b,
                1000 + f * b,
                b % 8,
                1 + b % 5
            );
        }
        text.push_str(" }\n return r;\n}\n");
    }
    text
}
