//! Kill -9 of any process at random moments, many times: no process reads a wrong page, and
//! all resources of the dead are released.

use super::{Case, for_ever};
use e2e::contract::{Size, Under};
use e2e::daemon::Settings;
use e2e::noise::Noise;
use e2e::processes::Process;
use e2e::verdict::{Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Running, Sandbox, hazard};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    a_daemon_killed_again_and_again_loses_no_page => daemon_killed,
    tenants_killed_again_and_again_leave_everything_to_the_others => tenants_killed,
];

/// Rounds between two times that everything is counted.
const ROUNDS: u64 = 10;

/// The log line of an admitted tenant.
const CAME_IN: &str = ") has frames";

fn came_in(daemon: &Daemon) -> usize {
    daemon.log().matches(CAME_IN).count()
}

/// Programs under load, each of another kind.
struct Load {
    sandboxes: Vec<Sandbox>,
    running: Vec<Running>,
}

impl Load {
    fn start(daemon: &Daemon) -> Verdict<Self> {
        let sandboxes: Vec<_> = (0..3)
            .map(|_| Sandbox::new("load"))
            .collect::<Verdict<_>>()?;
        let mut running = Vec::new();
        let names = [
            "eight_threads_write_and_check",
            "fork_storm",
            "heap_used_by_many_threads",
        ];
        for (sandbox, name) in sandboxes.iter().zip(names) {
            let program = hazard::build(sandbox, name, &[])?;
            let contract = daemon.terms(8, 96).with("--disk=50ms/250ms,extra");
            running.push(for_ever(sandbox, &program, 24).spawn(&Under::Contract(contract))?);
        }
        // A program that has not started yet when its daemon ends does not start.
        super::wait_until("all have frames", || {
            let all = daemon.tenants()?;
            let started = all.iter().filter(|one| one["owned"].as_u64() > Some(0));
            Ok(started.count() == running.len())
        })?;
        Ok(Self { sandboxes, running })
    }

    fn goes_on(&mut self, when: &str, daemon: &Daemon) -> Verdict {
        for running in &mut self.running {
            let ended = running.ended();
            ensure(!ended, || {
                format!(
                    "{when}: a program ended:\n{}\nthe daemon said:\n{}",
                    running.stderr(),
                    daemon.said()
                )
            })?;
        }
        Ok(())
    }

    /// Insists that these have what they had before, and that no other tenant has frames,
    /// bloks, disk time or cgroups.
    fn is_alone(&self, daemon: &Daemon, before: &Value) -> Verdict {
        super::wait_until("only the others are left, with what they had", || {
            let (all, books) = (daemon.tenants()?, daemon.books()?);
            let sum = |name: &str| all.iter().filter_map(|one| one[name].as_u64()).sum::<u64>();
            let frames = books["free"].as_u64().map(|free| free + sum("owned"));
            let same = ["tenants", "guaranteed", "swap_free", "promised"];
            Ok(all.len() == self.running.len()
                && frames == books["managed"].as_u64()
                && same.iter().all(|name| books[name] == before[name])
                && daemon.groups().len() <= 1 + all.len())
        })
    }

    /// Insists that each makes progress: it has finished more rounds of its work after a while.
    fn gets_on(&mut self, daemon: &Daemon) -> Verdict {
        let digests = |load: &Self| -> Vec<u64> {
            let paths = load.sandboxes.iter().map(|sandbox| sandbox.join("rounds"));
            paths
                .map(|path| std::fs::metadata(path).map_or(0, |file| file.len()))
                .collect()
        };
        let before = digests(self);
        super::wait_at_most(Duration::from_secs(180), "every program gets on", || {
            self.goes_on("after the last", daemon)?;
            Ok(digests(self)
                .iter()
                .zip(&before)
                .all(|(now, then)| now > then))
        })
    }
}

fn daemon_killed(disks: &Arc<Disks>, size: Size) -> Verdict {
    let settings = Settings::new(48).memory("restart_grace = \"30s\"");
    let mut daemon = Daemon::start(disks, &settings)?;
    let mut load = Load::start(&daemon)?;
    let mut noise = Noise::new(11);
    let rounds = size.scale(1000, 50);
    for round in 0..rounds {
        // From its first moments to when it has been serving for a while.
        let scale = 10 + noise.below(10);
        std::thread::sleep(Duration::from_micros(noise.below(1 << scale)));
        daemon.kill()?;
        std::thread::sleep(Duration::from_micros(noise.below(20_000)));
        match noise.below(4) {
            // Killed while it starts, too.
            0 => daemon.launch()?,
            _ => daemon.again()?,
        }
        load.goes_on(&format!("round {round}"), &daemon)?;
    }
    daemon.kill()?;
    daemon.again()?;
    load.gets_on(&daemon)?;
    // Most daemons lived long enough for tenants to reconnect.
    let back = daemon.log().matches(" is back").count() as u64;
    ensure(back >= rounds, || {
        format!("{back} tenants reconnected in {rounds} rounds")
    })?;
    drop(load);
    daemon.has_everything_back()
}

fn tenants_killed(disks: &Arc<Disks>, size: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let mut load = Load::start(&daemon)?;
    let sandbox = Sandbox::new("victim")?;
    let program = hazard::build(&sandbox, "fork_storm", &[])?;
    let mut noise = Noise::new(12);
    let before = daemon.books()?;
    let rounds = size.scale(1000, 40);
    for round in 0..rounds {
        if round % ROUNDS == 0 {
            load.is_alone(&daemon, &before)?;
        }
        let contract = daemon.terms(8, 32).with("--disk=25ms/250ms,extra");
        let came = came_in(&daemon);
        let running = Launch::new(&sandbox, &program)
            .arg("for-ever")
            .variable("HAZARD_MB", "24")
            .limit(Duration::from_secs(60))
            .spawn(&Under::Contract(contract))?;
        // Before it has its contract, whose swap is wiped first, and after.
        if round % 2 == 0 {
            daemon.says(CAME_IN, came + 1)?;
        }
        let scale = 12 + noise.below(8);
        std::thread::sleep(Duration::from_micros(noise.below(1 << scale)));
        let mut now = running.processes();
        now.retain(|process| !process.is_witness());
        let victim = match noise.below(3) {
            // Front process, supervisor, or any other process.
            0 => now.first(),
            1 => now.get(1),
            _ => now.get(noise.below(now.len() as u64) as usize),
        };
        victim.into_iter().for_each(Process::kill);
        drop(running);
        load.goes_on(&format!("round {round}"), &daemon)?;
    }
    load.gets_on(&daemon)?;
    load.is_alone(&daemon, &before)?;
    drop(load);
    daemon.has_everything_back()
}
