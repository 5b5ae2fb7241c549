//! What a run found, as text and as data.

use crate::config::Config;
use crate::policy_time::{PolicyCall, PolicyCost};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A scenario's result.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioReport {
    /// Its name.
    pub scenario: &'static str,
    /// What it was run with.
    pub config: Config,
    /// What happened, in order.
    pub phases: Vec<PhaseReport>,
    /// Promises and epochs checked.
    pub checks: u64,
    /// Rules broken: must be 0.
    pub violations: u64,
    /// The first of them.
    pub violation_texts: Vec<String>,
    /// Events simulated.
    pub events: u64,
}

/// A phase of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// What it is.
    pub phase: String,
    /// Simulated seconds.
    pub seconds: f64,
    /// Servers that were up at its end.
    pub servers: usize,
    /// Groups of hosts that reach each other, at its end.
    pub groups: usize,
    /// From its beginning to one broker for each group; `None` if there was none by its end.
    pub one_broker_ms: Option<u64>,
    /// From its beginning to a broker whose record has all servers of its group.
    pub all_servers_ms: Option<u64>,
    /// Requests for permits.
    pub requests: Requests,
    /// The load of the busiest broker.
    pub broker: BrokerLoad,
    /// The load of hosts without a broker.
    pub host: HostLoad,
    /// How even servers are in use.
    pub balance: Balance,
    /// What happened to pages.
    pub pages: Pages,
    /// From its beginning to the last of the clients that moved being served by near servers alone;
    /// `None` if no client moved, or some were not.
    pub near_ms: Option<u64>,
    /// Clients that moved and are not served by near servers alone.
    pub far_clients: usize,
    /// Processor time of brokers' policy on the machine that simulated.
    pub policy: BTreeMap<PolicyCall, PolicyCost>,
}

/// Requests for permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Requests of organizers.
    pub asked: u64,
    /// Permits issued or enlarged.
    pub granted: u64,
    /// Refused, since no server of the broker has the room.
    pub refused_no_room: u64,
    /// Refused, since the permit's server does not enlarge it, or is not the broker's.
    pub refused_other: u64,
    /// Sent again for want of an answer.
    pub sent_again: u64,
    /// Without an answer at the end of the phase.
    pub waiting: u64,
    /// Median time to a permit.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
    /// Permits that took longer than a second.
    pub over_second: u64,
}

/// The load of the busiest broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BrokerLoad {
    /// Messages that it sent and received, a second.
    pub messages_s: f64,
    /// Their bytes, a second.
    pub bytes_s: f64,
    /// Messages in its busiest second.
    pub peak_messages: u64,
    /// The share of a processor that messages take, by the cost that is assumed for each.
    pub message_load: f64,
    /// The share of a processor that the policy of all brokers took.
    pub policy_load: f64,
}

/// The load of hosts without a broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HostLoad {
    /// Messages of servers, a second, on average.
    pub messages_s: f64,
    /// Bytes of servers, a second, on average.
    pub bytes_s: f64,
    /// Messages of clients, a second, on average.
    pub client_messages_s: f64,
}

/// How even servers are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Balance {
    /// Pages granted of a server, on average.
    pub mean_pages: f64,
    /// Their standard deviation by their mean.
    pub variation: f64,
    /// The most by the mean.
    pub most_by_mean: f64,
    /// The share of all servers' pages that is granted.
    pub used: f64,
}

/// What happened to pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Objects, at the end.
    pub objects: u64,
    /// Objects whose copies are all out of reach, at the end.
    pub out_of_reach: u64,
    /// Objects with fewer copies than they should have, at the end.
    pub short: u64,
    /// Objects lost.
    pub lost: u64,
    /// Copies rebuilt.
    pub rebuilt_copies: u64,
    /// Their pages.
    pub rebuilt_pages: u64,
    /// Copies moved.
    pub moved_copies: u64,
    /// Their pages.
    pub moved_pages: u64,
    /// Moves given up.
    pub moves_kept: u64,
}

impl ScenarioReport {
    /// Objects lost in all phases.
    pub fn lost(&self) -> u64 {
        self.phases.iter().map(|phase| phase.pages.lost).sum()
    }

    /// The report without what depends on the machine.
    pub fn without_times(mut self) -> Self {
        for phase in &mut self.phases {
            phase.policy.clear();
            phase.broker.policy_load = 0.0;
        }
        self
    }
}

impl fmt::Display for ScenarioReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config {
            servers,
            clients,
            seed,
            ..
        } = self.config;
        let name = self.scenario;
        writeln!(
            f,
            "{name}: {servers} servers, {clients} clients, seed {seed}"
        )?;
        for phase in &self.phases {
            write!(f, "{phase}")?;
        }
        writeln!(
            f,
            "  rules: {} checks, {} broken; {} events",
            self.checks, self.violations, self.events
        )?;
        self.violation_texts
            .iter()
            .try_for_each(|text| writeln!(f, "    {text}"))
    }
}

impl fmt::Display for PhaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Option<u64>| time.map_or("not".to_owned(), |ms| format!("{ms} ms"));
        writeln!(
            f,
            "  {} ({:.0} s; {} servers, {} groups)",
            self.phase, self.seconds, self.servers, self.groups
        )?;
        let (one, all) = (ms(self.one_broker_ms), ms(self.all_servers_ms));
        writeln!(
            f,
            "    one broker per group: {one}; with all servers: {all}"
        )?;
        let r = &self.requests;
        writeln!(
            f,
            "    requests: {} asked, {} granted, {} refused for room, {} otherwise, {} sent again, {} waiting",
            r.asked, r.granted, r.refused_no_room, r.refused_other, r.sent_again, r.waiting
        )?;
        writeln!(
            f,
            "    time to a permit: p50 {} us, p99 {} us, max {} us; {} over 1 s",
            r.p50_us, r.p99_us, r.max_us, r.over_second
        )?;
        let b = &self.broker;
        writeln!(
            f,
            "    broker: {:.0} messages/s, {:.0} bytes/s, busiest second {} messages; processor: messages {:.3}, policy {:.3}",
            b.messages_s, b.bytes_s, b.peak_messages, b.message_load, b.policy_load
        )?;
        let h = &self.host;
        writeln!(
            f,
            "    server: {:.1} messages/s, {:.0} bytes/s; client: {:.1} messages/s",
            h.messages_s, h.bytes_s, h.client_messages_s
        )?;
        let l = &self.balance;
        writeln!(
            f,
            "    pages granted: {:.1} % of all; of a server {:.0}, variation {:.3}, max/mean {:.2}",
            l.used * 100.0,
            l.mean_pages,
            l.variation,
            l.most_by_mean
        )?;
        let p = &self.pages;
        writeln!(
            f,
            "    objects: {}, lost {}, out of reach {}, short of copies {}",
            p.objects, p.lost, p.out_of_reach, p.short
        )?;
        writeln!(
            f,
            "    pages: {} rebuilt ({} copies), {} moved ({} copies, {} given up)",
            p.rebuilt_pages, p.rebuilt_copies, p.moved_pages, p.moved_copies, p.moves_kept
        )?;
        if self.near_ms.is_some() || self.far_clients > 0 {
            let near = ms(self.near_ms);
            let far = self.far_clients;
            writeln!(f, "    moved clients served near: {near}; {far} are not")?;
        }
        for (call, cost) in &self.policy {
            let (calls, mean, most) = (cost.calls, cost.mean_ns(), cost.most_ns);
            writeln!(
                f,
                "    policy {call:?}: {calls} calls, mean {mean} ns, max {most} ns"
            )?;
        }
        Ok(())
    }
}
