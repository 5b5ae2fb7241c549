//! `selfpage doctor`: what this kernel, these permissions and this installation allow,
//! and what fixes each lack: a command where there is one.

mod kernel;

pub use kernel::{KernelReport, explain};

use crate::machine::{Memory, StateFolder, control_groups};
use crate::preload;
use std::error::Error;
use std::process::ExitCode;
use wired::Bytes;

/// Report what works here, what `run` chooses, and how to fix the rest.
///
/// Exits 0 when unmodified programs can be run, 1 when not.
#[derive(clap::Args)]
pub struct DoctorArgs {}

/// One thing `run` needs, or does better with.
struct Check {
    name: &'static str,
    found: Result<String, String>,
    mend: &'static str,
    /// `run` cannot do without.
    needed: bool,
}

/// Prints the report.
pub fn doctor(_: DoctorArgs) -> Result<ExitCode, Box<dyn Error>> {
    crate::machine::check_proc()?;
    let without = std::env::var("SELFPAGE_WITHOUT").unwrap_or_default();
    let report =
        KernelReport::gather(&without).map_err(|why| format!("SELFPAGE_WITHOUT: {why}"))?;
    println!("{report}");
    println!("for `selfpage run`:\n");
    let checks = checks();
    for check in &checks {
        match &check.found {
            Ok(found) => println!("  {:<22}{found}", check.name),
            Err(why) => println!("  {:<22}{why}\n  {:<22}fix: {}", check.name, "", check.mend),
        }
    }
    for line in processor_time() {
        println!("  {line}");
    }
    let works =
        report.unmodified_programs_page() && checks.iter().all(|c| !c.needed || c.found.is_ok());
    println!(
        "\n`selfpage run` {} here",
        if works { "works" } else { "does not work" }
    );
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn checks() -> Vec<Check> {
    let memory = Memory::now();
    let limit = memory.limit.map_or_else(|| "none".to_owned(), mib);
    let check = |name, found, mend, needed| Check {
        name,
        found,
        mend,
        needed,
    };
    let fact = |name, found| Check {
        name,
        found: Ok(found),
        mend: "",
        needed: false,
    };
    vec![
        check(
            "preload library",
            preload::find()
                .map(|path| path.display().to_string())
                .map_err(|e| e.to_string()),
            "cargo build --release, or set SELFPAGE_PRELOAD",
            true,
        ),
        check(
            "state folder",
            StateFolder::find().map(|f| format!("{}, {} free", f.path.display(), mib(f.free))),
            "set XDG_STATE_HOME to a folder on a disk, or name a store with --store",
            false,
        ),
        check(
            "direct I/O noticed",
            seccomp(),
            "a kernel of 5.5 or later, not already under a seccomp listener; until then every page is checked \
             before it is evicted",
            false,
        ),
        fact(
            "memory",
            format!("{}, {} available", mib(memory.total), mib(memory.available)),
        ),
        fact(
            "control groups",
            format!("{}, memory limit {limit}", control_groups()),
        ),
        fact("huge pages", huge_pages()),
        check(
            "threads that page",
            match host::lent_priority::is_permitted() {
                true => Ok("of a contract with a daemon come before programs that compute".into()),
                false => Err("have no priority under a daemon that this user runs".into()),
            },
            "run the daemon with CAP_SYS_NICE, in a control group with real-time budget (cpu.rt_runtime_us)",
            false,
        ),
        check(
            "kernel swap",
            swap(memory.swap),
            "swapoff -a, or keep contracts well below what is free",
            false,
        ),
        check(
            "page size",
            page_size(),
            "a kernel with base pages of 4 KiB",
            true,
        ),
    ]
}

/// The means by which `--cpu` can reserve processor time.
fn processor_time() -> Vec<String> {
    let mut lines = Vec::new();
    for (by, lack) in host::cpu_reservation::survey() {
        let name = format!("--cpu by={}", by.name());
        match lack {
            None => lines.push(format!("{name:<22}yes")),
            Some(lack) => {
                lines.push(format!("{name:<22}no: {}: {}", lack.what, lack.errno));
                lines.push(format!("{:<22}fix: {}", "", lack.mend));
            }
        }
    }
    lines
}

/// Checks that a seccomp filter can be installed, in a process of its own.
fn seccomp() -> Result<String, String> {
    // SAFETY: this process has one thread; the child makes system calls and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let errno = host::seccomp::install()
            .err()
            .map_or(0, |errno| errno.raw_os_error());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(errno.min(255)) };
    }
    let mut status = 0;
    // SAFETY: waits for that child.
    if child < 0 || unsafe { libc::waitpid(child, &mut status, 0) } != child {
        return Err("could not be tried".into());
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok("yes (seccomp user notification)".into()),
        errno => Err(format!("no: {}", std::io::Error::from_raw_os_error(errno))),
    }
}

fn huge_pages() -> String {
    let modes =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = modes
        .split('[')
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    match chosen {
        Some(mode) => format!("{mode}; stretches opt out of them"),
        None => "not in this kernel".into(),
    }
}

fn swap(bytes: u64) -> Result<String, String> {
    match bytes {
        0 => Ok("off".into()),
        bytes => Err(format!(
            "{} on: correct, but the kernel may swap out what a contract says is resident",
            mib(bytes)
        )),
    }
}

fn page_size() -> Result<String, String> {
    match rustix::param::page_size() {
        wired::PAGE => Ok("4 KiB".into()),
        other => Err(format!("{other} bytes")),
    }
}

fn mib(bytes: u64) -> String {
    Bytes(bytes >> 20 << 20).to_string()
}
