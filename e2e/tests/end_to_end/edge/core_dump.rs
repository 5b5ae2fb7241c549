//! Core dumps of paged programs.

use super::script;
use e2e::Sandbox;
use e2e::contract::MIB;
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use std::os::unix::fs::MetadataExt;

/// Has a program dump core under `run`, with these options. Returns the bytes of the core
/// dump's file and the messages of `run`.
fn dump_core(name: &str, options: &str, program: &str) -> Verdict<(u64, String)> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        return skipped("core dumps do not go to a file of that name here");
    }
    let sandbox = Sandbox::new(name)?;
    let text = format!("ulimit -c unlimited && $RUN {options} --store ram:256M -- {program}");
    let (_, said) = script(&sandbox, &text)?;
    let folder = std::fs::read_dir(sandbox.path()).doing(|| "read the sandbox".into())?;
    let cores: Vec<_> = folder
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("core"))
        .map(|entry| entry.path())
        .collect();
    let [core] = &cores[..] else {
        return skipped(format!("no core dump was made: {cores:?}, {said}"));
    };
    // The file is sparse: it is as long as the heap's addresses.
    let size = std::fs::metadata(core).map_or(0, |file| file.blocks() * 512);
    let _ = std::fs::remove_file(core);
    sandbox.check_clean()?;
    Ok((size, said))
}

/// The tables and the compressed RAM of a tree are gigabytes of addresses, with what other
/// processes keep in them. A shell has less than a megabyte of its own.
pub fn core_dump() -> Verdict {
    let (size, said) = dump_core("core_dump", "--frames 16M", "sh -c 'kill -ABRT $$'")?;
    ensure(size > 0 && size < 64 * MIB, || {
        format!("a core dump of {size} bytes: {said}")
    })
}

/// The kernel's core dump skips pages that are not present.
pub fn partial_core_dump() -> Verdict {
    let program = "python3 -c 'import os; b = bytearray(b\"selfpage\" * (8 << 20)); os.abort()'";
    for (frames, whole) in [("--frames 16M", false), ("--frames 192M", true)] {
        let (size, said) = dump_core("partial_core_dump", frames, program)?;
        ensure((size > 64 * MIB) == whole, || {
            format!("{size} bytes of 64 MiB are in the core dump, {frames}: {said}")
        })?;
        let told = said.contains("zeros for the pages that were paged out");
        ensure(told != whole, || {
            format!("with {frames} its output: {said}")
        })?;
    }
    Ok(())
}
