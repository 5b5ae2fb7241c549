//! Calls after which the kernel may hold pages: from then on pages are checked before eviction.

use super::super::command::{contract, shell};
use super::script;
use e2e::contract::{Contract, MIB, Size, Under};
use e2e::outcome::number;
use e2e::verdict::{Doing, Verdict, ensure, failed, skipped};
use e2e::{Launch, Sandbox, hazard};

/// Returns true if pages were checked before they were evicted, at the end.
fn careful(stats: Option<&serde_json::Value>) -> Verdict<bool> {
    match stats.and_then(|stats| stats["direct_io"].as_bool()) {
        Some(careful) => Ok(careful),
        None => failed("the figures have no direct_io"),
    }
}

pub fn noticed() -> Verdict {
    let sandbox = Sandbox::new("noticed")?;
    let program = hazard::build(&sandbox, "calls_after_which_pages_are_held", &[])?;
    let calls = [
        "open",
        "openat",
        "openat2",
        "open_by_handle_at",
        "fcntl",
        "pidfd_getfd",
        "io_uring_setup",
        "io_setup",
        "process_vm_writev",
        "SG_IO",
        "VIDIOC_REQBUFS",
        "RDMA_VERBS_IOCTL",
        "AF_ALG",
        "AF_XDP",
        "mount",
        "fsopen",
        "setns",
        "x32",
    ];
    let check = |call: &str, expected: bool| {
        let outcome = Launch::new(&sandbox, &program)
            .args([call])
            .run(&contract())?
            .succeeded()?;
        let careful = careful(outcome.stats.as_ref())?;
        ensure(careful == expected, || {
            format!("after {call} pages are checked: {careful}")
        })
    };
    if reads_in_place(&sandbox)? {
        return skipped("a file system is mounted for which pages are checked always");
    }
    check("others", false)?;
    calls.iter().try_for_each(|call| check(call, true))?;
    sandbox.check_clean()
}

/// The rings by which a pager reaches its store are no direct I/O of the program's: a tree that
/// pages to a disk evicts without the check.
pub fn of_the_store() -> Verdict {
    let sandbox = Sandbox::new("of_the_store")?;
    if reads_in_place(&sandbox)? {
        return skipped("a file system is mounted for which pages are checked always");
    }
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = Contract::new(8 * MIB).over(0, 256 * MIB);
    let outcome = hazard::launch(&sandbox, &program, Size::Quick)
        .run(&Under::Contract(contract))?
        .succeeded()?;
    let stats = outcome.stats.as_ref();
    let count = |counter| stats.map_or(Ok(0), |stats| number(stats, counter));
    let reads = count("/counters/disk_reads")? + count("/counters/readahead_hits")?;
    ensure(reads > 0, || "no page came from the disk".into())?;
    ensure(!careful(stats)?, || {
        "the pager's own rings were taken for direct I/O".into()
    })?;
    sandbox.check_clean()
}

/// Returns true if pages are checked here whatever a program does.
fn reads_in_place(sandbox: &Sandbox) -> Verdict<bool> {
    let outcome = shell(sandbox, ":", &contract())?.succeeded()?;
    careful(outcome.stats.as_ref())
}

pub fn mounted_before() -> Verdict {
    let sandbox = Sandbox::new("mounted_before")?;
    let name = "a_file_system_that_reads_straight_into_memory";
    let program = hazard::build(&sandbox, name, &[])?;
    let folder = sandbox.join("mounted");
    std::fs::create_dir(&folder).doing(|| "make a folder".into())?;
    let (at, program) = (folder.display(), program.display());
    let text = format!(
        "HAZARD_MB=32 {program} mount {at} /bin/sh -c '$RUN --frames 8M -- {program} read {at}'"
    );
    let (output, said) = script(&sandbox, &text)?;
    if output.status.code() == Some(77) {
        return skipped(said.trim());
    }
    ensure(output.status.success(), || {
        format!("{:?}; its output: {said}", output.status)
    })?;
    sandbox.check_clean()
}

pub fn mounted_meanwhile() -> Verdict {
    let sandbox = Sandbox::new("mounted_meanwhile")?;
    if reads_in_place(&sandbox)? {
        return skipped("a file system is mounted for which pages are checked always");
    }
    let name = "a_file_system_that_reads_straight_into_memory";
    let program = hazard::build(&sandbox, name, &[])?;
    let folder = sandbox.join("mounted");
    std::fs::create_dir(&folder).doing(|| "make a folder".into())?;
    let (at, program) = (folder.display(), program.display());
    let text = format!(
        "{program} late {at} /bin/sh -c \
         '$RUN --frames 8M --stats-json figures.json -- /bin/sh -c \"echo; read word\"'"
    );
    let (output, said) = script(&sandbox, &text)?;
    if output.status.code() == Some(77) {
        return skipped(said.trim());
    }
    ensure(output.status.success(), || {
        format!("{:?}; its output: {said}", output.status)
    })?;
    ensure(was_careful(&sandbox)?, || {
        "a file system was mounted, and pages were not checked".into()
    })?;
    sandbox.check_clean()
}

/// Returns true if the run that left its figures in a sandbox checked pages before eviction.
fn was_careful(sandbox: &Sandbox) -> Verdict<bool> {
    let figures = std::fs::read_to_string(sandbox.join("figures.json")).unwrap_or_default();
    let figures: Option<serde_json::Value> = serde_json::from_str(&figures).ok();
    careful(figures.as_ref())
}

pub fn message() -> Verdict {
    const SEND: &str = "import os,socket,subprocess,sys
ours, theirs = socket.socketpair()
fd = os.open('file', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
program = subprocess.Popen(sys.argv[1:] + [str(theirs.fileno())], pass_fds=[theirs.fileno()])
socket.send_fds(ours, [b'x'], [fd])
sys.exit(program.wait())";
    const RECEIVE: &str = "import socket,sys
_, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 1)
assert len(fds) == 1";
    let sandbox = Sandbox::new("message")?;
    for (name, text) in [("send.py", SEND), ("receive.py", RECEIVE)] {
        std::fs::write(sandbox.join(name), text).doing(|| format!("write {name}"))?;
    }
    let run = "$RUN --frames 8M --stats-json figures.json -- python3 receive.py";
    let (output, said) = script(&sandbox, &format!("python3 send.py {run}"))?;
    if said.contains("Invalid argument: 'file'") {
        return skipped("this file system has no direct I/O");
    }
    ensure(output.status.success(), || {
        format!("{:?}; its output: {said}", output.status)
    })?;
    ensure(was_careful(&sandbox)?, || {
        "the program had a descriptor for direct I/O, and pages were not checked".into()
    })?;
    sandbox.check_clean()
}
