//! Limits and memory that do not suffice for a contract.

use super::{refused, script};
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use e2e::{Sandbox, hazard};
use std::path::Path;

pub fn limits() -> Verdict {
    let sandbox = Sandbox::new("limits")?;
    let echo = "--frames 8M -- /bin/echo started";
    for (limit, words) in [
        ("-n 10", ["ulimit -n", "allows 10 open files", "or higher"]),
        ("-f 1", ["ulimit -f", "at most", "ulimit -f unlimited"]),
        (
            "-v 100000",
            ["ulimit -v", "100000KiB", "ulimit -v unlimited"],
        ),
        ("-v 1300000", ["ulimit -v", "1300000KiB", "at least"]),
        ("-d 1000", ["ulimit -d", "1000KiB", "ulimit -d unlimited"]),
    ] {
        refused(&sandbox, &format!("ulimit {limit}; $RUN {echo}"), &words)?;
    }
    let disk = format!("--store disk:{}/swap,size=64M", sandbox.path().display());
    refused(
        &sandbox,
        &format!("ulimit -f 1000; $RUN {disk} {echo}"),
        &["ulimit -f", "swap file of 64MiB"],
    )?;
    sandbox.check_clean()
}

pub fn memory() -> Verdict {
    let sandbox = Sandbox::new("memory")?;
    let meminfo = std::fs::read_to_string("/proc/meminfo").doing(|| "read /proc/meminfo".into())?;
    let kib = meminfo
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    let beyond = format!("{}G", (kib.unwrap_or(0) >> 20) + 2);
    for (asked, named) in [
        (format!("--frames 8M --store ram:{beyond}"), "--store ram:"),
        (format!("--frames {beyond}"), "--frames "),
    ] {
        refused(
            &sandbox,
            &format!("$RUN {asked} -- /bin/echo started"),
            &[named, &beyond, "more than the", "at most"],
        )?;
    }
    sandbox.check_clean()
}

/// Of ranges of 64 KiB that a program shares, as many are paged as a quarter of the open files.
pub fn shared_memory() -> Verdict {
    let sandbox = Sandbox::new("shared_memory")?;
    let map = "import mmap; maps = [mmap.mmap(-1, 1 << 16) for _ in range(COUNT)]";
    for (count, is_named) in [(100, false), (300, true)] {
        let program = map.replace("COUNT", &count.to_string());
        let text =
            format!("ulimit -n 600; $RUN --frames 16M --store ram:64M -- python3 -c '{program}'");
        let (output, said) = script(&sandbox, &text)?;
        let last = said.lines().last().unwrap_or_default();
        let words = ["of shared memory", "not paged", "ulimit -n"];
        let has_all = words.iter().all(|word| last.contains(word));
        ensure(output.status.success() && has_all == is_named, || {
            format!("{count} ranges: {said}")
        })?;
    }
    sandbox.check_clean()
}

/// Where `run` begins with a hard limit on addresses or data, programs read it as it is, and may return to it. One that
/// a program sets passes through another without the library.
pub fn hard_limits() -> Verdict {
    let sandbox = Sandbox::new("hard_limits")?;
    let name = "a_lowered_limit_can_be_restored";
    let between = sandbox.join("between");
    std::fs::rename(hazard::build(&sandbox, name, &["-static"])?, &between)
        .doing(|| "rename a program".into())?;
    let program = hazard::build(&sandbox, name, &[])?;
    let (program, between) = (program.display(), between.display());
    for text in [
        format!("ulimit -v 41943040; $RUN --frames 8M -- {program}"),
        format!("ulimit -d 41943040; $RUN --frames 8M -- {program}"),
        format!("ulimit -Sv 31457280; ulimit -Hv 41943040; $RUN --frames 8M -- {program}"),
        format!("$RUN --frames 8M --allow-unpaged -- {program} through {between}"),
    ] {
        let (output, said) = script(&sandbox, &text)?;
        ensure(output.status.success(), || format!("{text}: {said}"))?;
    }
    // Shared memory leaves the supervisor descriptors for the processes that start.
    let program = hazard::build(&sandbox, "forks_beside_many_shared_mappings", &[])?;
    let text = format!("ulimit -n 300; $RUN --frames 8M -- {}", program.display());
    let (output, said) = script(&sandbox, &text)?;
    ensure(output.status.success(), || format!("{text}: {said}"))?;
    sandbox.check_clean()
}

/// A tree that has as many processes as descriptors allow works on: the supervisor has some left, whatever the limit.
pub fn descriptors() -> Verdict {
    let sandbox = Sandbox::new("descriptors")?;
    let program = hazard::build(&sandbox, "forks_up_to_the_limit_of_descriptors", &[])?;
    for limit in 70..76 {
        let run = "$RUN --on-exit kill --frames 16M --store ram:64M";
        let text = format!("ulimit -n {limit}; {run} -- {}", program.display());
        let (output, said) = script(&sandbox, &text)?;
        let is_refused = said.contains("raise `ulimit -n`");
        ensure(output.status.success() && is_refused, || {
            format!("{limit} descriptors: {said}")
        })?;
    }
    sandbox.check_clean()
}

/// Where the kernel grants the pagers no memory for rings, they read and write by plain calls.
pub fn locked_memory() -> Verdict {
    let sandbox = Sandbox::new("locked_memory")?;
    let swap = format!("disk:{}/swap,size=256M", sandbox.path().display());
    let program = "python3 -c 'b = bytearray(64 << 20); b[::4096] = b\"x\" * (64 << 8); assert b.count(b\"x\") == 64 << 8'";
    let (output, said) = script(
        &sandbox,
        &format!("ulimit -l 0; $RUN --frames 16M --store {swap} -- {program}"),
    )?;
    ensure(output.status.success(), || {
        format!("{}: {said}", output.status)
    })?;
    sandbox.check_clean()
}

/// A memory control group of 64 MiB; skips where none can be made.
struct Group(String);

impl Group {
    fn make() -> Verdict<Self> {
        let name = format!("selfpage-e2e-{}", std::process::id());
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (root, file) in places {
            let folder = format!("{root}/{name}");
            if !Path::new(root).join("cgroup.procs").exists()
                || std::fs::create_dir(&folder).is_err()
            {
                continue;
            }
            let group = Self(folder);
            if std::fs::write(format!("{}/{file}", group.0), "67108864").is_ok() {
                return Ok(group);
            }
        }
        skipped("no memory control group can be made here")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

pub fn control_group() -> Verdict {
    let sandbox = Sandbox::new("group")?;
    let group = Group::make()?;
    for asked in ["--frames 128M", "--frames 32M --store ram:48M"] {
        let enter = format!("echo $$ > {}/cgroup.procs || exit 77", group.0);
        refused(
            &sandbox,
            &format!("{enter}; exec $RUN {asked} -- /bin/echo started"),
            &["64 MiB this control group may use", "ask for at most"],
        )?;
    }
    sandbox.check_clean()
}
