//! The interpreter of programs, in C: its sources and its binary.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts of the interpreter, in the order in which each includes those before it.
pub const PARTS: [&str; 10] = [
    include_str!("../interpreter/log.h"),
    include_str!("../interpreter/content.h"),
    include_str!("../interpreter/region.h"),
    include_str!("../interpreter/mapping.h"),
    include_str!("../interpreter/access.h"),
    include_str!("../interpreter/process.h"),
    include_str!("../interpreter/event.h"),
    include_str!("../interpreter/heap.h"),
    include_str!("../interpreter/transfer.h"),
    include_str!("../interpreter/start.h"),
];

/// Compiles a C source into `folder`, as a program of an ordinary build.
pub fn compile(source: &Path, folder: &Path, name: &str) -> std::io::Result<PathBuf> {
    let program = folder.join(name);
    let done = Command::new("cc")
        .args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(source)
        .output()?;
    match done.status.success() {
        true => Ok(program),
        false => Err(std::io::Error::other(format!(
            "cc: {}",
            String::from_utf8_lossy(&done.stderr)
        ))),
    }
}

/// Compiles the interpreter into `folder`.
pub fn build(folder: &Path) -> std::io::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("interpreter/main.c");
    compile(&source, folder, "interpreter")
}
