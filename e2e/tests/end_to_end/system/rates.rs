//! Fault rates and reserved processor time under one daemon: what one tenant reserves is
//! missing from the others' shares, and comes back to them; and the shares outlive the daemon.

use super::{Case, for_ever, wait_until};
use crate::throttle::figure;
use e2e::contract::{Size, Under};
use e2e::daemon::Settings;
use e2e::launch::Running;
use e2e::verdict::{Verdict, ensure, failed, skipped};
use e2e::{Daemon, Disks, Launch, Sandbox, hazard};
use serde_json::Value;
use std::sync::Arc;

pub const CASES: &[(&str, Case)] = cases![
    shares_of_the_faults_follow_reservations_and_outlive_the_daemon => shares,
    processor_time_beyond_what_there_is_is_refused_with_the_figures => too_much,
    a_share_of_the_faults_is_kept_to => kept,
    programs_that_start_at_once_are_all_let_in => at_once,
];

/// Milliseconds of a period.
const PERIOD_MS: f64 = 100.0;

/// The daemon accepts the fault cost that tenants report down to an eighth of the configured
/// cost.
const BELIEVED: f64 = 8.0;

/// Milliseconds that a fault is said to cost: a few are all there is time for.
const SLOW: f64 = 10.0;

/// The same where programs are to end.
const FASTER: f64 = 2.0;

fn settings(unit_ms: f64) -> Settings {
    let faults = format!("[faults]\nperiod = \"{PERIOD_MS}ms\"\ninitial_cost = \"{unit_ms}ms\"\n");
    Settings::new(64).rest(&faults)
}

/// How often something is done again that goes wrong in few cases, if at all.
const TURNS: u64 = 6;

/// The part of the processors that is shared out, by default.
const SHARE: f64 = 0.95;

fn processors() -> f64 {
    std::thread::available_parallelism().map_or(1, usize::from) as f64
}

/// All faults of a period, beside so many processors' worth of reservations, once tenants
/// have said that theirs cost little.
fn all_faults(unit_ms: f64, reserved: f64) -> u64 {
    ((SHARE * processors() - reserved) * PERIOD_MS / unit_ms * BELIEVED) as u64
}

/// A tenant's share of the faults, if the tenant exists.
fn held(daemon: &Daemon, tenant: u64) -> Verdict<Value> {
    let all = daemon.tenants()?;
    let found = all
        .iter()
        .find(|one| one["tenant"].as_u64() == Some(tenant));
    Ok(found.map_or(Value::Null, |one| one["faults"].clone()))
}

/// Waits until tenants have half each of what is left beside so much of the processors.
fn wait_for_halves(daemon: &Daemon, tenants: [u64; 2], reserved: f64) -> Verdict {
    let (all, mut last) = (all_faults(SLOW, reserved), Vec::new());
    let halves = wait_until("the faults are shared out", || {
        last.clear();
        for tenant in tenants {
            last.push(held(daemon, tenant)?);
        }
        // Rounded at each step.
        let has = |faults: &Value, name: &str, wanted: u64| {
            let found = faults["share"][name].as_u64();
            found.is_some_and(|found| found.abs_diff(wanted) <= 1)
        };
        Ok(last
            .iter()
            .all(|faults| has(faults, "system", all) && has(faults, "limit", all / 2)))
    });
    match halves {
        Err(_) => failed(format!(
            "beside {reserved} processors two have {last:?}, not half of {all} each"
        )),
        Ok(()) => Ok(()),
    }
}

fn shares(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(disks, &settings(SLOW))?;
    let sandboxes = [Sandbox::new("shares")?, Sandbox::new("shares")?];
    let mut running = Vec::new();
    for (sandbox, tenant) in sandboxes.iter().zip(1..) {
        let program = hazard::build(sandbox, "eight_threads_write_and_check", &[])?;
        let contract = daemon.terms(8, 64).with("--fault-rate=auto");
        running.push(for_ever(sandbox, &program, 16).spawn(&Under::Contract(contract))?);
        daemon.says("has frames", tenant)?;
    }
    wait_for_halves(&daemon, [1, 2], 0.0)?;

    let beside = Sandbox::new("shares")?;
    let contract = daemon.terms(8, 16).with("--cpu=600ms/1s,by=weight");
    let reserved = Launch::new(&beside, "/bin/sleep")
        .arg("600")
        .spawn(&Under::Contract(contract))?;
    let mut reserved = Some(reserved);
    if let Some(reason) = lacks_weights(&mut reserved, &daemon)? {
        return skipped(reason);
    }
    wait_for_halves(&daemon, [1, 2], 0.6)?;
    let own = held(&daemon, 3)?;
    ensure(own["share"]["limit"] == 0, || {
        format!("with a reservation it still has a limit: {own}")
    })?;
    let shown = daemon.contract(&["show"])?.unwrap_or_default();
    ensure(
        shown.contains("within its own 600ms/1s of processor time")
            && shown.contains("of all tenants'"),
        || format!("shown is {shown}"),
    )?;

    // All tenants report their shares to a restarted daemon.
    daemon.kill()?;
    daemon.again()?;
    wait_for_halves(&daemon, [1, 2], 0.6)?;

    drop(reserved);
    wait_for_halves(&daemon, [1, 2], 0.0)?;
    for one in &mut running {
        ensure(!one.ended(), || format!("it ended: {}", one.stderr()))?;
    }
    drop(running);
    daemon.has_everything_back()
}

/// Waits for a tenant with a reservation. Returns the reason if the reservation was refused
/// because this machine lacks a mechanism.
fn lacks_weights(running: &mut Option<Running>, daemon: &Daemon) -> Verdict<Option<String>> {
    let mut ended = false;
    wait_until("it has its reservation or is refused", || {
        ended = running.as_mut().is_some_and(Running::ended);
        Ok(ended || !held(daemon, 3)?.is_null())
    })?;
    let Some(running) = running.take_if(|_| ended) else {
        return Ok(None);
    };
    let outcome = running.wait()?.ended_with(125)?;
    let said = outcome.stderr;
    match said.contains("no processor time can be reserved") {
        true => Ok(Some(format!("control groups have no weights here: {said}"))),
        false => failed(format!("it was refused for another reason: {said}")),
    }
}

/// Nine tenths of a processor each, beside the little that comes with their disk time: one more than
/// fits is refused, and fits after another has ended.
fn too_much(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let contract = || {
        let terms = daemon.terms(4, 8).with("--disk=1ms/250ms,extra");
        terms.with("--cpu=900ms/1s,by=weight")
    };
    let fit = (SHARE * processors() / 0.9) as usize;
    let mut holders = Vec::new();
    let sandboxes = (0..fit)
        .map(|_| Sandbox::new("reserved"))
        .collect::<Verdict<Vec<_>>>()?;
    for sandbox in &sandboxes {
        let mut holder = Launch::new(sandbox, "/bin/sleep")
            .arg("600")
            .spawn(&Under::Contract(contract()))?;
        let number = holders.len() as u64 + 1;
        wait_until("it has its reservation or is refused", || {
            Ok(holder.ended() || !held(&daemon, number)?.is_null())
        })?;
        if holder.ended() {
            let said = holder.wait()?.ended_with(125)?.stderr;
            return match said.contains("no processor time can be reserved") {
                true => skipped(format!("control groups have no weights here: {said}")),
                false => failed(format!("one of those that fit was refused: {said}")),
            };
        }
        holders.push(holder);
    }
    let sandbox = Sandbox::new("reserved")?;
    let one_more = Launch::new(&sandbox, "/bin/echo").arg("started");
    // Each refusal gives its reason: the tenant has its frames by then, and is not killed.
    for _ in 0..TURNS {
        let refused = one_more
            .run(&Under::Contract(contract()))?
            .ended_with(125)?;
        for word in ["0.9", "can be reserved"] {
            refused.mentions(word)?;
        }
        ensure(refused.text().is_empty(), || "it was started".into())?;
    }
    drop(holders.pop());
    one_more.run(&Under::Contract(contract()))?.succeeded()?;
    drop(holders);
    daemon.has_everything_back()
}

/// Two programs that fault much more than their limits finish with their results, and no
/// period of theirs exceeds its share; the shares never exceed the total.
fn kept(disks: &Arc<Disks>, size: Size) -> Verdict {
    let daemon = Daemon::start(disks, &settings(FASTER))?;
    let all = all_faults(FASTER, 0.0);
    let sandboxes = [Sandbox::new("kept")?, Sandbox::new("kept")?];
    let mut running = Vec::new();
    let mut expected = Vec::new();
    for sandbox in &sandboxes {
        let program = hazard::build(sandbox, "eight_threads_write_and_check", &[])?;
        let launch = hazard::launch(sandbox, &program, size).variable("HAZARD_MB", "8");
        expected.push(launch.run(&Under::Nothing)?.succeeded()?.text());
        let contract = daemon.terms(4, 32).with("--fault-rate=auto");
        running.push(launch.spawn(&Under::Contract(contract))?);
    }
    for (one, expected) in running.into_iter().zip(expected) {
        let outcome = one.wait()?.succeeded()?.within_contract()?;
        let said = outcome.text();
        ensure(said == expected, || {
            format!("it printed {said:?}, without the pager {expected:?}")
        })?;
        let (most, throttled) = (
            figure(&outcome, "/counters/peak_tree_faults")?,
            figure(&outcome, "/counters/throttled_faults")?,
        );
        ensure((1..=all).contains(&most), || {
            format!("{most} faults in a period, of {all} of all")
        })?;
        ensure(throttled > 0, || "no fault was throttled".into())?;
    }
    daemon.has_everything_back()
}

/// Each admission changes the shares of the other tenants, which receive them during their own
/// admission.
fn at_once(disks: &Arc<Disks>, _: Size) -> Verdict {
    const AT_ONCE: u64 = 5;
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    for _ in 0..TURNS {
        let sandboxes = (0..AT_ONCE)
            .map(|_| Sandbox::new("at_once"))
            .collect::<Verdict<Vec<_>>>()?;
        let mut running = Vec::new();
        for sandbox in &sandboxes {
            let contract = daemon
                .terms(8, 16)
                .with("--fault-rate=auto")
                .with("--disk=5ms/250ms");
            let launch = Launch::new(sandbox, "/bin/echo").arg("started");
            running.push(launch.spawn(&Under::Contract(contract))?);
        }
        for one in running {
            let said = one.wait()?.succeeded()?.text();
            ensure(said == "started\n", || format!("its output: {said:?}"))?;
        }
    }
    daemon.has_everything_back()
}
