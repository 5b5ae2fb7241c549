//! All end-to-end cases: `make test` runs them quick, `make soak` full
//! (`SELFPAGE_E2E_SIZE=full`). A case that cannot run here prints the reason and counts as
//! ignored.

/// Cases by name.
macro_rules! cases {
    ($($name:ident => $case:expr),+ $(,)?) => { &[$((stringify!($name), $case)),+] };
}

/// Trials of a kind, by name.
macro_rules! trials {
    ($kind:literal: $($name:ident => $case:expr),+ $(,)?) => {
        vec![$($crate::trial($kind, stringify!($name), $case)),+]
    };
}

mod command;
mod edge;
mod kill;
mod lending_hosts;
mod objects;
mod player;
mod remote;
mod remote_etcd;
mod remote_faults;
mod remote_hosts;
mod remote_stripes;
mod system;
mod throttle;

use e2e::contract::{Size, bare_only};
use e2e::verdict::Halt;
use e2e::{Verdict, hazard, sandbox, workload};
use libtest_mimic::{Arguments, Completion, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // Three at a time even on larger machines: a case's threads and its pager's need
    // processors of their own, and hangs are detected by time. Each waits for half of its time.
    arguments.test_threads.get_or_insert(3);
    let size = Size::from_environment();
    let before = sandbox::strangers();

    let mut trials = Vec::new();
    for workload in &workload::ALL {
        trials.push(trial("workload", workload.name, move || {
            workload::compare(workload, size, size.contract(), &|_| ()).map(drop)
        }));
        if !bare_only() {
            let name = format!("{}_over_a_little_ram_and_a_disk", workload.name);
            trials.push(trial("workload", &name, move || {
                workload::compare(workload, size, workload::tiers(size), &|_| ()).map(drop)
            }));
        }
    }
    for name in hazard::names() {
        let sentence = name.clone();
        trials.push(trial("hazard", &sentence, move || {
            hazard::check(&name, size)
        }));
    }
    if !bare_only() {
        trials.extend(command::trials(size));
        trials.extend(edge::trials(size));
        trials.extend(kill::trials(size));
        trials.extend(throttle::trials(size));
        trials.extend(player::trials(size));
        trials.extend(objects::trials(size));
        trials.extend(remote::trials(size));
        trials.extend(remote_hosts::trials(size));
        trials.extend(remote_faults::trials(size));
        trials.extend(remote_etcd::trials(size));
        trials.extend(remote_stripes::trials(size));
        trials.extend(system::trials(size));
    }

    let conclusion = libtest_mimic::run(&arguments, trials);
    let left: Vec<_> = sandbox::strangers().difference(&before).cloned().collect();
    if !left.is_empty() {
        eprintln!("left behind outside the sandboxes: {left:?}");
        std::process::exit(101);
    }
    conclusion.exit();
}

/// A case, whose skip says its reason where `SKIPPED` is looked for.
fn trial(kind: &str, name: &str, case: impl FnOnce() -> Verdict + Send + 'static) -> Trial {
    let full = format!("{kind}::{name}");
    let said = full.clone();
    Trial::ignorable_test(full, move || match case() {
        Ok(()) => Ok(Completion::Completed),
        Err(Halt::Skipped(reason)) => {
            eprintln!("{said}: SKIPPED: {reason}");
            Ok(Completion::ignored_with(reason))
        }
        Err(halt) => {
            // At once, too: a run that is cut short by its caller has no summary.
            eprintln!("{said}: {halt}");
            Err(halt.to_string().into())
        }
    })
}
