//! The hazard programs: one per thing that real programs do to a pager, in C, because
//! what matters is what the C library and the kernel do underneath.

use crate::contract::{Contract, MIB, Size, Under, bare_only};
use crate::launch::Launch;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, ensure, failed, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The exit status by which a hazard says that it cannot run here.
const CANNOT: i32 = 77;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hazards")
}

/// The names of all hazards: each is a sentence, and a file in hazards/.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_suffix(".c")
                .map(Into::into)
        })
        .collect();
    names.sort();
    names
}

/// Builds a hazard into a sandbox, with more compiler options if need be.
pub fn build(sandbox: &Sandbox, name: &str, options: &[&str]) -> Verdict<PathBuf> {
    let program = sandbox.join(name);
    let done = Command::new("cc")
        .args([
            "-O1",
            "-g",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Wno-unused-result",
            "-o",
        ])
        .arg(&program)
        .arg(folder().join(format!("{name}.c")))
        .args(options)
        .output()
        .doing(|| "run cc (install gcc)".into())?;
    ensure(done.status.success(), || {
        format!("cc: {}", String::from_utf8_lossy(&done.stderr))
    })?;
    Ok(program)
}

/// Bytes that a hazard touches, several times its frames.
pub fn bytes(size: Size) -> u64 {
    size.scale(512, 32) * MIB
}

/// Bytes of frames for a hazard.
pub fn frames(size: Size) -> u64 {
    size.scale(64, 8) * MIB
}

/// A hazard's launch, ready to be run.
pub fn launch<'a>(sandbox: &'a Sandbox, program: &Path, size: Size) -> Launch<'a> {
    Launch::new(sandbox, program)
        .variable("HAZARD_MB", (bytes(size) / MIB).to_string())
        .limit(Duration::from_secs(size.scale(900, 240)))
}

/// Runs one hazard bare and under its contracts; its output must be the same.
pub fn check(name: &str, size: Size) -> Verdict {
    let sandbox = Sandbox::new(name)?;
    let program = build(&sandbox, name, &[])?;
    let launch = launch(&sandbox, &program, size);
    let bare = launch.run(&Under::Nothing)?;
    if bare.status.code() == Some(CANNOT) {
        return skipped(bare.stderr.trim());
    }
    let expected = bare.succeeded()?.text();
    if bare_only() {
        return Ok(());
    }
    let mut contracts = vec![Contract::new(frames(size))];
    if size == Size::Full {
        contracts.push(Contract::new(frames(size)).over(0, 4096 * MIB));
    }
    for contract in contracts {
        let paged = launch.run(&Under::Contract(contract))?;
        let said = paged.succeeded()?.within_contract()?.text();
        if said != expected {
            return failed(format!(
                "it printed {said:?}, without the pager {expected:?}"
            ));
        }
        sandbox.check_clean()?;
    }
    Ok(())
}
