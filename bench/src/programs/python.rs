//! CPython with objects in a dict, and NumPy with arrays.

use super::program::Workload;
use crate::env::find_program;
use crate::prelude::*;
use crate::process::output;
use std::process::Stdio;

/// Objects for each MiB that CPython takes [325 MiB with a million, 3.11].
const OBJECTS_PER_MIB: u64 = 3_000;

/// Numbers in an array for each MiB that NumPy takes: four arrays of 8 bytes a number at a time.
const NUMBERS_PER_MIB: u64 = (1 << 20) / (4 * 8);

/// The interpreter itself: in its place on the path there may be a script that finds it, whose shell
/// would be paged, too.
fn interpreter(named: Option<&Path>) -> Result<PathBuf> {
    let found = match named {
        Some(path) => path.to_owned(),
        None => find_program("python3", "python3")?,
    };
    let mut command = Command::new(&found);
    command.args(["-c", "import sys; print(sys.executable)"]);
    let said = output(command, Stdio::null())
        .or_unavailable(format_args!("{} does not run", found.display()))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&said).trim()))
}

fn script(interpreter: &Path, text: &str, size: u64) -> Workload {
    let mut command = Command::new(interpreter);
    command.args(["-c", text]).arg(size.to_string());
    // The order of a set of strings, and so the work, is the same in every run.
    command.env("PYTHONHASHSEED", "1");
    Workload::of(command)
}

/// Objects in a dict, grouped.
pub fn prepare(named: Option<&Path>, mib: u64) -> Result<Workload> {
    let text = include_str!("group.py");
    Ok(script(&interpreter(named)?, text, mib * OBJECTS_PER_MIB))
}

/// Arrays, sorted and grouped.
pub fn prepare_numpy(named: Option<&Path>, mib: u64) -> Result<Workload> {
    let interpreter = interpreter(named)?;
    let mut import = Command::new(&interpreter);
    import.args(["-c", "import numpy"]);
    output(import, Stdio::null()).map_err(|_| {
        unavailable(format_args!(
            "{} has no numpy: pip install numpy, or name an interpreter that has it with --python",
            interpreter.display()
        ))
    })?;
    let text = include_str!("arrays.py");
    let mut work = script(&interpreter, text, mib * NUMBERS_PER_MIB);
    // A thread for each processor would each have a stack and buffers of its own.
    work.command.env("OPENBLAS_NUM_THREADS", "1");
    Ok(work)
}
