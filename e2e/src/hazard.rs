//! The hazard programs: one per thing that real programs do to a pager, in C (or C++ where
//! its runtime is what matters), because what matters is what the C library and the kernel do
//! underneath.

use crate::contract::{Contract, MIB, Size, Under, bare_only};
use crate::launch::Launch;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, ensure, failed, skipped};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The exit status of a hazard that cannot run here.
const CANNOT: i32 = 77;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hazards")
}

/// A hazard's source, in C or in C++.
fn source(name: &str) -> PathBuf {
    let plain = folder().join(format!("{name}.c"));
    match plain.exists() {
        true => plain,
        false => folder().join(format!("{name}.cc")),
    }
}

/// The names of all hazards: each is a sentence, and a file in hazards/.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let (name, kind) = name.to_str()?.rsplit_once('.')?;
            matches!(kind, "c" | "cc").then(|| name.into())
        })
        .collect();
    names.sort();
    names
}

/// Builds a hazard into a sandbox, with more compiler options if need be.
pub fn build(sandbox: &Sandbox, name: &str, options: &[&str]) -> Verdict<PathBuf> {
    let program = sandbox.join(name);
    let source = source(name);
    let compiler = match source.extension() {
        Some(c) if c == "c" => "cc",
        _ => "c++",
    };
    let mut command = Command::new(compiler);
    command
        .args("-O1 -g -pthread -Wall -Wextra -Wno-unused-result -o".split(' '))
        .arg(&program)
        .arg(source)
        .args(options);
    if compiler == "c++" {
        command.arg("-fnon-call-exceptions");
    }
    let done = match command.output() {
        Err(error) if compiler == "c++" && error.kind() == ErrorKind::NotFound => {
            return skipped("there is no C++ compiler (install g++)");
        }
        done => done.doing(|| format!("run {compiler} (install gcc)"))?,
    };
    ensure(done.status.success(), || {
        format!("{compiler}: {}", String::from_utf8_lossy(&done.stderr))
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

/// A contract with the options of `selfpage run` that a hazard names, in a comment of its own
/// that begins with that command. `--frames` is in MiB, and replaces the contract's; `--store disk` is a store without
/// compressed RAM.
pub fn with_options(name: &str, contract: Contract) -> Verdict<Contract> {
    let source = source(name);
    let text = std::fs::read_to_string(&source).doing(|| format!("read {}", source.display()))?;
    let asked = text.lines().find_map(|line| {
        let asked = line.strip_prefix("/* selfpage run ")?;
        asked.strip_suffix(" */")
    });
    let mut contract = contract;
    let mut options = asked.unwrap_or("").split_whitespace();
    while let Some(option) = options.next() {
        match option {
            "--frames" => {
                let mib = options.next().and_then(|size| size.strip_suffix('M'));
                let mib = mib.and_then(|mib| mib.parse::<u64>().ok());
                let Some(mib) = mib else {
                    return failed(format!("{name}: --frames is followed by MiB, as in 1M"));
                };
                contract.frames = mib * MIB;
            }
            "--store" => match options.next() {
                Some("disk") => contract = contract.over(0, 4096 * MIB),
                store => contract = contract.with("--store").with(store.unwrap_or_default()),
            },
            option => contract = contract.with(option),
        }
    }
    Ok(contract)
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
        let contract = with_options(name, contract)?;
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
