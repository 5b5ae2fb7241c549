//! Limits of the fault rate, and reserved processor time: a program is slowed, never wrong,
//! and no period holds more faults than its limit.

use super::command::shell;
use super::kill::{end, settled};
use e2e::Outcome;
use e2e::contract::{Contract, MIB, Size, Under};
use e2e::outcome::number;
use e2e::verdict::{Verdict, ensure, failed, skipped};
use e2e::{Launch, Sandbox, hazard, refusal};
use libtest_mimic::Trial;
use std::time::Duration;

pub fn trials(size: Size) -> Vec<Trial> {
    trials![
        "throttle":
        threads_past_their_limits_are_slowed_and_right =>
            move || throttled(size, "eight_threads_write_and_check", (50, 200)),
        forks_do_not_wait_for_a_throttled_thread =>
            move || throttled(size, "fork_where_both_sides_write", (300, 600)),
        a_limit_by_what_faults_cost_is_measured => move || automatic(size),
        killed_while_asleep_in_a_fault_nothing_is_left => killed,
        a_rate_or_reservation_that_cannot_be_is_refused => refused,
        reserved_processor_time_is_had_or_refused => reserved,
    ]
}

/// A figure that `run` wrote at the end.
pub(crate) fn figure(outcome: &Outcome, name: &str) -> Verdict<u64> {
    match &outcome.stats {
        Some(stats) => number(stats, name),
        None => failed("no statistics were written"),
    }
}

/// A hazard checks itself; under limits its output is the same, and the counts are within.
fn throttled(size: Size, name: &str, (task, tree): (u64, u64)) -> Verdict {
    let sandbox = Sandbox::new("throttled")?;
    let program = hazard::build(&sandbox, name, &[])?;
    let launch = hazard::launch(&sandbox, &program, size);
    let expected = launch.run(&Under::Nothing)?.succeeded()?.text();
    let contract =
        Contract::new(hazard::frames(size)).with(&format!("--fault-rate={task}/10ms,tree={tree}"));
    let outcome = launch.run(&Under::Contract(contract))?.succeeded()?;
    let outcome = outcome.within_contract()?;
    let said = outcome.text();
    ensure(said == expected, || {
        format!("it printed {said:?}, without the pager {expected:?}")
    })?;
    let most_task = figure(&outcome, "/counters/peak_task_faults")?;
    let most_tree = figure(&outcome, "/counters/peak_tree_faults")?;
    ensure((1..=task).contains(&most_task), || {
        format!("{most_task} faults of one thread in a period, of at most {task}")
    })?;
    ensure((1..=tree).contains(&most_tree), || {
        format!("{most_tree} faults in a period, of at most {tree}")
    })?;
    let throttled = figure(&outcome, "/counters/throttled_faults")?;
    ensure(throttled > 0, || "no fault was throttled".into())?;
    outcome.mentions("s asleep over the fault rate")?;
    sandbox.check_clean()
}

fn automatic(size: Size) -> Verdict {
    let sandbox = Sandbox::new("automatic")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    let contract = Contract::new(hazard::frames(size)).with("--fault-rate=auto");
    let launch = hazard::launch(&sandbox, &program, size);
    let outcome = launch.run(&Under::Contract(contract))?.succeeded()?;
    for name in ["fault_unit_ns", "tree_limit", "system_limit", "samples"] {
        let value = figure(&outcome, &format!("/fault_rate/{name}"))?;
        ensure(value > 0, || format!("{name} is 0"))?;
    }
    sandbox.check_clean()
}

/// One fault of each thread in ten seconds: the program sleeps at once, and for long.
fn killed() -> Verdict {
    let sandbox = Sandbox::new("killed_asleep")?;
    let program = hazard::build(&sandbox, "eight_threads_write_and_check", &[])?;
    for victim in 0..3 {
        let contract = Contract::new(8 * MIB).with("--fault-rate=1/10s");
        let running = Launch::new(&sandbox, &program)
            .variable("HAZARD_MB", "32")
            .limit(Duration::from_secs(60))
            .spawn(&Under::Contract(contract))?;
        std::thread::sleep(Duration::from_millis(500));
        let mut now = running.processes();
        now.retain(|process| !process.is_witness());
        match now.get(victim) {
            Some(process) => process.kill(),
            None => end(&running),
        }
        let outcome = running.wait()?;
        ensure(outcome.left.is_empty(), || {
            format!("these still run: {:?}", outcome.left)
        })?;
        settled(&sandbox)?;
    }
    Ok(())
}

fn refused() -> Verdict {
    let sandbox = Sandbox::new("refused_rates")?;
    let wrong = [
        ("--fault-rate", "0/10ms", "1 to 1048575"),
        ("--fault-rate", "100/0ms", "give one of 1ms to 10s"),
        ("--fault-rate", "100", "FAULTS/PERIOD"),
        ("--fault-rate", "100/10ms,tree=5", "fewer than the 100"),
        ("--fault-rate", "auto,tree=5", "auto[/PERIOD]"),
        ("--cpu", "10ms/0ms", "invalid period: zero"),
        ("--cpu", "0ms/10ms", "leave the reservation out"),
        ("--cpu", "20ms/10ms", "longer than its period"),
        ("--cpu", "1us/33ms", "at least 100µs"),
        ("--cpu", "10ms/40ms,by=luck", "by=deadline|realtime|weight"),
    ];
    for (option, value, part) in wrong {
        let said = refusal::of_options(&sandbox, &["--frames", "8M", option, value])?;
        ensure(said.contains(part), || {
            format!("{option} {value}: the message does not contain {part:?}: {said}")
        })?;
    }
    Ok(())
}

fn reserved() -> Verdict {
    // Field 41 of a stat file is the scheduling policy; the shell reads it without a fork.
    const POLICY: &str = "read -r a < /proc/$$/stat; set -- $a; echo ${41}";
    let mut had = 0;
    for (by, policy) in [("deadline", "6"), ("realtime", "2"), ("weight", "0")] {
        let sandbox = Sandbox::new("reserved")?;
        let contract = Contract::new(8 * MIB).with(&format!("--cpu=5ms/50ms,by={by}"));
        let outcome = shell(&sandbox, POLICY, &Under::Contract(contract))?;
        let said = outcome.stderr.clone();
        if outcome.status.code() == Some(125) {
            ensure(said.contains("no processor time can be reserved"), || {
                format!("{by}: it failed for another reason: {said}")
            })?;
            continue;
        }
        had += 1;
        let found = outcome.succeeded()?.text();
        ensure(found.trim() == policy, || {
            format!("{by}: the policy is {found}")
        })?;
        ensure(said.contains(&format!("of processor time by {by}")), || {
            format!("{by}: the message does not name the reservation: {said}")
        })?;
    }
    match had {
        0 => skipped("no mechanism can be had here (see `selfpage run --cpu`)"),
        _ => Ok(()),
    }
}
