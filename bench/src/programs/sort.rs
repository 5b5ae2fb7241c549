//! GNU sort of a file that it holds in memory whole.

use super::lines;
use super::program::Workload;
use crate::env::find_program;
use crate::prelude::*;

/// What sort holds of a line besides its bytes, at most.
const A_LINE: u64 = 64;

/// Bytes of a line, at least and below.
const LENGTHS: std::ops::Range<u64> = 100..401;

/// The program and a file of lines.
pub fn prepare(env: &TestEnv, mib: u64) -> Result<Workload> {
    let program = find_program("sort", "coreutils")?;
    let input = env.file("lines")?;
    let mean = (LENGTHS.start + LENGTHS.end) / 2;
    let bytes = (mib << 20) * mean / (mean + A_LINE);
    let lines = lines::write(&input, bytes, LENGTHS)?;
    let buffer = bytes + lines * A_LINE + (16 << 20);
    let mut command = Command::new(program);
    command.env("LC_ALL", "C");
    // One buffer for all: no temporary files.
    let buffer = format!("--buffer-size={}K", buffer >> 10);
    command.args(["--parallel=1", &buffer]).arg(&*input);
    Ok(Workload {
        input: Some(input),
        ..Workload::of(command)
    })
}
