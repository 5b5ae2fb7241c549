//! Boundary conditions of the command: limits, read-only folders, missing memory, a run within
//! a run, and the exactness of its figures.

mod core_dump;
mod direct_io;
mod instruments;
mod limits;

use super::command::{contract, shell};
use e2e::contract::{Contract, MIB, Size, Under, selfpage};
use e2e::outcome::number;
use e2e::verdict::{Doing, Verdict, ensure, failed, skipped};
use e2e::{Launch, Sandbox, hazard, refusal};
use libtest_mimic::Trial;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub fn trials(_: Size) -> Vec<Trial> {
    trials![
        "command":
        programs_with_sanitizers_run_to_their_end => instruments::sanitizers,
        a_debugger_calls_functions_of_a_paged_program => instruments::debugger,
        a_killed_pager_takes_its_program_along => killed_pager,
        a_limit_that_is_too_low_is_named => limits::limits,
        a_hard_limit_of_before_reads_as_it_is_and_can_be_restored => limits::hard_limits,
        memory_that_is_not_there_is_refused => limits::memory,
        shared_memory_beyond_the_limit_is_named_at_the_end => limits::shared_memory,
        a_tree_as_large_as_its_descriptors_allow_works_on => limits::descriptors,
        pages_come_back_without_locked_memory => limits::locked_memory,
        the_memory_of_a_control_group_is_what_is_there => limits::control_group,
        without_a_place_for_a_file_the_default_store_is_ram => no_place,
        a_default_store_whose_file_fails_is_ram => file_fails,
        a_place_for_figures_that_cannot_be_is_told_at_once => figures_place,
        a_run_within_a_run_pages_in_the_outer_one => nested,
        forks_are_counted => forks,
        the_stages_of_faults_are_counted_of_processes_that_were_killed_too => stages,
        the_pagers_own_memory_does_not_count_as_not_paged => pagers_own,
        each_call_after_which_pages_are_held_is_noticed_and_no_other => direct_io::noticed,
        the_rings_of_a_store_over_a_disk_are_no_direct_io => direct_io::of_the_store,
        a_file_system_that_reads_straight_into_memory_is_noticed_where_it_is_mounted_before =>
            direct_io::mounted_before,
        a_file_system_that_reads_straight_into_memory_is_noticed_when_another_program_mounts_it =>
            direct_io::mounted_meanwhile,
        a_descriptor_for_direct_io_that_comes_with_a_message_is_noticed => direct_io::message,
        a_core_dump_holds_the_memory_of_its_program_alone => core_dump::core_dump,
        a_core_dump_without_the_paged_out_pages_is_told => core_dump::partial_core_dump,
    ]
}

/// The kernel ends a program whose pager is gone: its missing pages would read as zeros. The shell
/// starts no process meanwhile: `run` would wait for that, and it has a pager of its own.
fn killed_pager() -> Verdict {
    let sandbox = Sandbox::new("pager")?;
    let kill = "for p in /proc/[0-9]*; do \
                  read -r name < $p/comm || continue; \
                  [ \"$name\" = selfpage-pager ] || continue; \
                  read -r pid _ _ parent _ < $p/stat; \
                  [ \"$parent\" = $PPID ] && kill -9 $pid; \
                done 2> /dev/null; \
                i=0; while [ $i -lt 3000000 ]; do i=$((i + 1)); done; echo lived";
    let (output, said) = script(
        &sandbox,
        &format!("exec $RUN --frames 16M --store ram:64M -- sh -c '{kill}'"),
    )?;
    let killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
    ensure(killed && output.stdout.is_empty(), || {
        format!(
            "{:?} {:?}; its output:\n{said}",
            output.status, output.stdout
        )
    })?;
    sandbox.check_clean()
}

/// A shell script that knows `selfpage run` as `$RUN`.
fn script(sandbox: &Sandbox, text: &str) -> Verdict<(Output, String)> {
    let output = Command::new("/bin/sh")
        .args(["-c", text])
        .env("RUN", format!("{} run", selfpage()?.display()))
        .envs(sandbox.environment())
        .current_dir(sandbox.path())
        .stdin(Stdio::null())
        .output()
        .doing(|| "run a shell".into())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output, said))
}

/// Insists that `selfpage run` refused before the program started, with these words.
fn refused(sandbox: &Sandbox, text: &str, words: &[&str]) -> Verdict {
    let (output, _) = script(sandbox, text)?;
    let said = refusal::insist(text, &output)?;
    ensure(words.iter().all(|word| said.contains(word)), || {
        format!("{text}: {words:?} are not all in {said}")
    })
}

/// With /var/tmp read-only and the state folder in memory, in a mount namespace.
fn no_place() -> Verdict {
    let sandbox = Sandbox::new("no_place")?;
    let inside = |run: &str| {
        format!(
            "exec unshare -m sh -c 'mount --bind /var/tmp /var/tmp && mount -o remount,bind,ro /var/tmp || exit 77
             export XDG_STATE_HOME=/dev/shm/selfpage-e2e-state; {run}; status=$?
             rmdir /dev/shm/selfpage-e2e-state/selfpage /dev/shm/selfpage-e2e-state; exit $status'"
        )
    };
    let (output, said) = script(&sandbox, &inside("$RUN --frames 8M -- /bin/echo started"))?;
    if output.status.code() == Some(77) || said.contains("unshare:") {
        return skipped("no mount namespace can be made here");
    }
    ensure(
        output.status.success() && output.stdout == b"started\n",
        || format!("{:?}; its output: {said}", output.status),
    )?;
    ensure(
        said.contains("compressed RAM alone") && said.contains("--store"),
        || format!("no notice in {said}"),
    )?;
    refused(
        &sandbox,
        &inside("$RUN --frames 8M --store disk:/var/tmp/swap,size=64M -- /bin/echo started"),
        &["/var/tmp/swap", "read-only", "another path"],
    )
}

fn file_fails() -> Verdict {
    let sandbox = Sandbox::new("file_fails")?;
    // Enough for the tables, not for a swap file of the usual size.
    let (output, said) = script(
        &sandbox,
        "ulimit -f 3145728; $RUN --frames 8M -- /bin/echo started",
    )?;
    ensure(
        output.status.success() && output.stdout == b"started\n",
        || format!("{:?}; its output: {said}", output.status),
    )?;
    let free = rustix::fs::statvfs(sandbox.path()).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    if free < 17 << 30 {
        return skipped("too little free space for a default swap file above the limit");
    }
    ensure(said.contains("compressed RAM alone"), || {
        format!("no notice in {said}")
    })?;
    sandbox.check_clean()
}

fn figures_place() -> Verdict {
    let sandbox = Sandbox::new("figures_place")?;
    let place = sandbox.join("no/such/folder/figures.json");
    refused(
        &sandbox,
        &format!(
            "$RUN --frames 8M --stats-json {} -- /bin/echo started",
            place.display()
        ),
        &["cannot write the figures", "no/such/folder", "--stats-json"],
    )?;
    sandbox.check_clean()
}

fn nested() -> Verdict {
    let sandbox = Sandbox::new("nested")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let inner = format!(
        "{} run --frames 64M --store remote:64M --remote 127.0.0.1:9 --insecure --stats-json inner.json -- {} && exit 9",
        selfpage()?.display(),
        program.display()
    );
    let outcome = Launch::new(&sandbox, "/bin/sh")
        .args(["-c", &inner])
        .variable("HAZARD_MB", "32")
        .limit(Duration::from_secs(240))
        .run(&contract())?
        .ended_with(9)?
        .within_contract()?;
    outcome.mentions("inside another `selfpage run`")?;
    let Some(outer) = &outcome.stats else {
        return failed("the outer run wrote no figures");
    };
    ensure(number(outer, "/counters/written_pages")? > 0, || {
        "the program did not page in the outer contract".into()
    })?;
    let inner = std::fs::read_to_string(sandbox.join("inner.json")).unwrap_or_default();
    let inner: serde_json::Value = serde_json::from_str(&inner).unwrap_or_default();
    ensure(inner["nested"] == true && inner["status"] == 0, || {
        format!("the inner figures are {inner}")
    })?;
    sandbox.check_clean()
}

fn forks() -> Verdict {
    let sandbox = Sandbox::new("forks")?;
    let outcome = shell(&sandbox, "(:; :); (:; :); (:; :); exit 0", &contract())?.succeeded()?;
    let Some(stats) = &outcome.stats else {
        return failed("no figures were written");
    };
    let (forks, processes) = (
        number(stats, "/counters/forks")?,
        number(stats, "/processes")?,
    );
    ensure((forks, processes) == (3, 4), || {
        format!("{forks} forks and {processes} processes, not 3 and 4")
    })?;
    sandbox.check_clean()
}

fn stages() -> Verdict {
    /// Threads of the program's, and handler threads of its pager's.
    const THREADS: u64 = 16;
    let sandbox = Sandbox::new("stages")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let script = format!(
        "export HAZARD_MB=48; {0} || exit; {0} & sleep 0.3; kill -9 $!; wait; exit 0",
        program.display()
    );
    let contract = Under::Contract(Contract::new(8 * MIB).over(0, 256 * MIB));
    let outcome = shell(&sandbox, &script, &contract)?.succeeded()?;
    let Some(stats) = &outcome.stats else {
        return failed("no figures were written");
    };
    let of = |stage: &str| number(stats, &format!("/stages/{stage}/count"));
    let counter = |name: &str| number(stats, &format!("/counters/{name}"));
    let (faults, reads) = (of("fault")?, of("read")?);
    // A fault that is being handled when its process ends is in one of them alone, and so is a
    // read that a thread was counting.
    ensure(
        faults <= counter("faults")? && faults * 10 > counter("faults")? * 9,
        || format!("{faults} whole faults: {stats}"),
    )?;
    let disk_reads = counter("disk_reads")?;
    ensure(reads <= disk_reads && disk_reads - reads <= THREADS, || {
        format!("{reads} reads: {stats}")
    })?;
    ensure((1..=reads).contains(&of("placement")?), || {
        format!("{reads} reads: {stats}")
    })?;
    ensure(of("frame_wait")? > 0, || format!("no wait: {stats}"))?;
    sandbox.check_clean()
}

/// A page table of 128 MiB, buffers and stacks are some hundred kilobytes; the program's
/// own data, stack and loader are about as much, and are all that may count.
fn pagers_own() -> Verdict {
    let sandbox = Sandbox::new("pagers_own")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let outcome = Launch::new(&sandbox, &program)
        .variable("HAZARD_MB", "128")
        .limit(Duration::from_secs(240))
        .run(&Under::Contract(Contract::new(16 * MIB)))?
        .succeeded()?
        .within_contract()?;
    let Some(stats) = &outcome.stats else {
        return failed("no figures were written");
    };
    let (pagers, unpaged) = (
        number(stats, "/memory/pagers")?,
        number(stats, "/memory/unpaged")?,
    );
    ensure(pagers > 128 << 10, || {
        format!("the figures count {pagers} bytes for the pager itself")
    })?;
    ensure(unpaged < 2 * MIB, || {
        format!("{unpaged} bytes count as not paged, {pagers} as the pager's own")
    })?;
    let peak = number(stats, "/memory/peak_anonymous")?;
    ensure(
        peak >= 16 * MIB && peak <= outcome.footprint.peak + 4 * MIB,
        || {
            format!(
                "a peak of {peak} bytes, where {} were seen from outside",
                outcome.footprint.peak
            )
        },
    )?;
    sandbox.check_clean()
}
