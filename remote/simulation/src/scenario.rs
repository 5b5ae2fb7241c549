//! What happens to the simulated hosts, and what is measured of it.

mod phase;

use crate::config::Config;
use crate::report::ScenarioReport;
use crate::world::World;
use phase::Recorder;
use serde::Serialize;
use std::time::Duration;

/// A second.
const SECOND: Duration = Duration::from_secs(1);

/// Time to settle: clients have placed their objects, and moved them to where they are near.
const SETTLE: Duration = Duration::from_secs(10);

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// All hosts begin at once.
    JoinAtOnce,
    /// One rack begins after another.
    JoinByRack,
    /// Programs create objects and end them.
    Steady,
    /// Single servers fail, one after another.
    SingleFailures,
    /// A tenth of the servers fails at once, and comes back.
    TenthFails,
    /// A rack fails, and comes back.
    RackFails,
    /// The broker fails.
    BrokerFails,
    /// Each new broker fails.
    BrokersFail,
    /// The hosts fall into two halves, and the halves heal.
    Halves,
    /// A rack is cut off, and comes back.
    RackCutOff,
    /// A tenth of the clients moves to another site.
    Movement,
    /// One message of a hundred is lost.
    Loss,
    /// Messages are delayed by up to 100 ms, and overtake each other.
    Delay,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::JoinAtOnce,
        Self::JoinByRack,
        Self::Steady,
        Self::SingleFailures,
        Self::TenthFails,
        Self::RackFails,
        Self::BrokerFails,
        Self::BrokersFail,
        Self::Halves,
        Self::RackCutOff,
        Self::Movement,
        Self::Loss,
        Self::Delay,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::JoinAtOnce => "join-at-once",
            Self::JoinByRack => "join-by-rack",
            Self::Steady => "steady",
            Self::SingleFailures => "single-failures",
            Self::TenthFails => "tenth-fails",
            Self::RackFails => "rack-fails",
            Self::BrokerFails => "broker-fails",
            Self::BrokersFail => "brokers-fail",
            Self::Halves => "halves",
            Self::RackCutOff => "rack-cut-off",
            Self::Movement => "movement",
            Self::Loss => "loss",
            Self::Delay => "delay",
        }
    }

    /// Runs it.
    pub fn run(self, config: Config) -> ScenarioReport {
        let mut run = Recorder::new(World::new(config));
        match self {
            Self::JoinAtOnce => {
                let all = 0..run.world.servers.len();
                run.world.start_servers(all);
                // The worst of it: clients want permits before there is a broker.
                run.world.ctx.config.first_object = Duration::ZERO;
                run.world.start_clients();
                run.phase("all begin at once", SETTLE);
            }
            Self::JoinByRack => join_by_rack(&mut run),
            _ => {
                settle(&mut run);
                self.disturb(&mut run);
            }
        }
        run.report(self.name())
    }

    fn disturb(self, run: &mut Recorder) {
        match self {
            Self::JoinAtOnce | Self::JoinByRack => {}
            Self::Steady => run.phase("programs create and end objects", 15 * SECOND),
            Self::SingleFailures => single_failures(run),
            Self::TenthFails => {
                let one_in_ten = (0..run.world.servers.len()).step_by(10).collect();
                fail(run, "a tenth of the servers fails", one_in_ten);
            }
            Self::RackFails => {
                let rack = rack_without_broker(run);
                let servers = run.world.ctx.network.topology.servers_of(rack).collect();
                fail(run, "a rack fails", servers);
            }
            Self::BrokerFails => {
                let leaders = run.world.leaders();
                fail(run, "the broker fails", leaders);
            }
            Self::BrokersFail => brokers_fail(run),
            Self::Halves => {
                let half = run.world.ctx.network.topology.racks() / 2;
                cut(run, "two halves", |rack| u32::from(rack >= half));
            }
            Self::RackCutOff => {
                let cut_off = rack_without_broker(run);
                cut(run, "a rack is cut off", |rack| u32::from(rack == cut_off));
            }
            Self::Movement => {
                run.world.move_clients(10);
                run.phase("a tenth of the clients is at another site", 20 * SECOND);
            }
            Self::Loss => {
                run.world.ctx.network.loss_permille = 10;
                run.phase("one message of a hundred is lost", 15 * SECOND);
            }
            Self::Delay => {
                run.world.ctx.network.extra_delay = Duration::from_millis(100);
                run.phase("messages are late by up to 100 ms", 15 * SECOND);
            }
        }
    }
}

/// All hosts begin, and have what they need.
fn settle(run: &mut Recorder) {
    let all = 0..run.world.servers.len();
    run.world.start_servers(all);
    run.world.run_until(5 * SECOND);
    run.world.start_clients();
    run.world.run_until(5 * SECOND + SETTLE);
    run.forget();
}

fn join_by_rack(run: &mut Recorder) {
    // All within 25 s, whatever their number.
    let racks = run.world.ctx.network.topology.racks();
    let pause = SECOND.min(25 * SECOND / racks as u32);
    for rack in 0..racks {
        let servers = run.world.ctx.network.topology.servers_of(rack);
        run.world.start_servers(servers);
        let until = run.world.ctx.now + pause;
        run.world.run_until(until);
    }
    run.phase("the last rack has begun", 10 * SECOND);
    run.world.start_clients();
    run.phase("clients begin", SETTLE);
}

fn single_failures(run: &mut Recorder) {
    for number in 0..2 {
        let victim = number * run.world.servers.len() / 2 + 1;
        fail(run, "one server fails", vec![victim]);
    }
}

/// Servers fail, and begin again when their pages are rebuilt.
fn fail(run: &mut Recorder, phase: &str, servers: Vec<usize>) {
    run.world.stop_servers(servers.iter().copied());
    run.phase(phase, 10 * SECOND);
    run.world.start_servers(servers);
    run.phase("they begin again", 5 * SECOND);
}

fn brokers_fail(run: &mut Recorder) {
    let mut failed = Vec::new();
    for _ in 0..5 {
        let leaders = run.world.leaders();
        run.world.stop_servers(leaders.iter().copied());
        failed.extend(leaders);
        run.phase("the broker fails", 4 * SECOND);
    }
    run.world.start_servers(failed);
    run.phase("they begin again", 6 * SECOND);
}

fn cut(run: &mut Recorder, phase: &str, side_of_rack: impl Fn(usize) -> u32) {
    run.world.partition(side_of_rack);
    run.phase(phase, 10 * SECOND);
    run.world.partition(|_| 0);
    run.phase("healed", 10 * SECOND);
}

fn rack_without_broker(run: &Recorder) -> usize {
    let topology = &run.world.ctx.network.topology;
    let leaders = run.world.leaders();
    let has_broker = |rack: &usize| {
        topology
            .servers_of(*rack)
            .any(|number| leaders.contains(&number))
    };
    (0..topology.racks())
        .rev()
        .find(|rack| !has_broker(rack))
        .unwrap_or(0)
}
