//! Measures a phase of a scenario.

use crate::network::Traffic;
use crate::report::{Balance, BrokerLoad, HostLoad, Pages, PhaseReport, ScenarioReport};
use crate::requests::RequestStats;
use crate::topology::Node;
use crate::world::{Elected, World};
use std::time::Duration;

/// How often a group is looked at for its broker.
const LOOK: Duration = Duration::from_millis(10);

/// The traffic of broker and hosts is counted by this.
const SECOND: Duration = Duration::from_secs(1);

/// Runs a world and records its phases.
pub(super) struct Recorder {
    pub world: World,
    phases: Vec<PhaseReport>,
    traffic: Vec<Traffic>,
}

/// A phase that is going on.
struct Running {
    began: Duration,
    one_broker: Option<Duration>,
    all_servers: Option<Duration>,
    peak_messages: u64,
    /// Traffic of the hosts that led, while they did.
    led: Traffic,
    led_for: Duration,
}

impl Recorder {
    pub fn new(world: World) -> Self {
        let traffic = world.ctx.network.traffic.clone();
        Self {
            world,
            phases: Vec::new(),
            traffic,
        }
    }

    /// What happened so far is of no phase.
    pub fn forget(&mut self) {
        self.traffic.clone_from(&self.world.ctx.network.traffic);
        self.world.ctx.requests = RequestStats::default();
        self.world.ctx.pages = Default::default();
        self.world.ctx.policy_time.take();
    }

    /// Lets a phase pass, and records it.
    pub fn phase(&mut self, phase: &str, lasts: Duration) {
        let began = self.world.ctx.now;
        let mut running = Running {
            began,
            one_broker: None,
            all_servers: None,
            peak_messages: 0,
            led: Traffic::default(),
            led_for: Duration::ZERO,
        };
        let mut look = began;
        while look < began + lasts {
            let second = look + SECOND;
            let before = self.world.ctx.network.traffic.clone();
            while look < second {
                look += LOOK;
                self.world.run_until(look);
                running.look(&self.world);
            }
            running.count_leader(&self.world, &before);
        }
        let report = self.measure(phase, running);
        self.phases.push(report);
        self.forget();
    }

    /// The report of all phases.
    pub fn report(self, scenario: &'static str) -> ScenarioReport {
        let ctx = self.world.ctx;
        ScenarioReport {
            scenario,
            phases: self.phases,
            checks: ctx.auditor.checks(),
            violations: ctx.auditor.violations(),
            violation_texts: ctx.auditor.texts().to_vec(),
            events: ctx.queue.entered(),
            config: ctx.config,
        }
    }

    fn measure(&mut self, phase: &str, running: Running) -> PhaseReport {
        let world = &mut self.world;
        let seconds = (world.ctx.now - running.began).as_secs_f64();
        let policy = world.ctx.policy_time.take();
        let policy_ns: u64 = policy.values().map(|cost| cost.total_ns).sum();
        let waiting = world.clients.iter().map(|client| client.waiting() as u64);
        let waiting = waiting.sum();
        let groups = world.groups();
        let far_clients = world.clients.iter().filter(|client| client.moved.is_some());
        let far_clients = far_clients.count();
        let has_moved = world.ctx.last_near > running.began;
        let since = |at: Duration| at.saturating_sub(running.began).as_millis() as u64;
        PhaseReport {
            phase: phase.to_owned(),
            seconds,
            servers: groups.values().map(Vec::len).sum(),
            groups: groups.len(),
            one_broker_ms: running.one_broker.map(since),
            all_servers_ms: running.all_servers.map(since),
            requests: world.ctx.requests.report(waiting),
            broker: running.load(world.ctx.config.message_cost, policy_ns, seconds),
            host: self.host_load(seconds),
            balance: self.balance(),
            pages: self.pages(),
            near_ms: (has_moved && far_clients == 0).then(|| since(self.world.ctx.last_near)),
            far_clients,
            policy,
        }
    }

    /// The load of hosts, but for pages and for those that lead.
    fn host_load(&self, seconds: f64) -> HostLoad {
        let leaders = self.world.leaders();
        let first = self.world.servers.len();
        let now = self.world.ctx.network.traffic.iter().zip(&self.traffic);
        let phase = now.map(|(now, before)| now.since(*before)).enumerate();
        let (mut servers, mut clients) = (Traffic::default(), Traffic::default());
        for (number, traffic) in phase.filter(|(number, _)| !leaders.contains(number)) {
            let sum = if number < first {
                &mut servers
            } else {
                &mut clients
            };
            sum.sent += traffic.sent;
            sum.received += traffic.received;
            sum.sent_bytes += traffic.sent_bytes;
            sum.received_bytes += traffic.received_bytes;
        }
        let of_servers = (first - leaders.len()).max(1) as f64 * seconds;
        let of_clients = self.world.clients.len().max(1) as f64 * seconds;
        HostLoad {
            messages_s: servers.messages() as f64 / of_servers,
            bytes_s: servers.bytes() as f64 / of_servers,
            client_messages_s: clients.messages() as f64 / of_clients,
        }
    }

    fn balance(&self) -> Balance {
        let up = self.world.servers.iter().filter(|server| server.is_alive);
        let granted: Vec<_> = up
            .map(|server| server.capacity.granted_pages() as f64)
            .collect();
        let count = granted.len().max(1) as f64;
        let mean = granted.iter().sum::<f64>() / count;
        let squares = granted
            .iter()
            .map(|pages| (pages - mean).powi(2))
            .sum::<f64>();
        let most = granted.iter().copied().fold(0.0, f64::max);
        let of_mean = |pages: f64| if mean > 0.0 { pages / mean } else { 0.0 };
        Balance {
            mean_pages: mean,
            variation: of_mean((squares / count).sqrt()),
            most_by_mean: of_mean(most),
            used: mean / self.world.ctx.config.owned_pages as f64,
        }
    }

    fn pages(&self) -> Pages {
        let world = &self.world;
        let stats = world.ctx.pages;
        let mut pages = Pages {
            lost: stats.lost_objects,
            rebuilt_copies: stats.rebuilt_objects,
            rebuilt_pages: stats.rebuilt_pages,
            moved_copies: stats.moved_objects,
            moved_pages: stats.moved_pages,
            moves_kept: stats.kept_moves,
            ..Pages::default()
        };
        for (number, client) in world.clients.iter().enumerate() {
            let node = Node(world.servers.len() + number);
            let (objects, short) = client.objects().count();
            pages.objects += objects;
            pages.short += short;
            pages.out_of_reach += client.objects().out_of_reach(|host| {
                let server = world.ctx.network.topology.node(host);
                world.servers[server.0].is_alive && world.ctx.network.is_reachable(node, server)
            });
        }
        pages
    }
}

impl Running {
    fn look(&mut self, world: &World) {
        if self.all_servers.is_some() {
            return;
        }
        let elected = world.elected();
        let now = Some(world.ctx.now);
        if elected == Elected::No {
            self.one_broker = None;
        } else {
            self.one_broker = self.one_broker.or(now);
        }
        if elected == Elected::AllServers {
            self.all_servers = now;
        }
    }

    /// Counts the traffic of the busiest host that leads, in the second that is over.
    fn count_leader(&mut self, world: &World, before: &[Traffic]) {
        let traffic = &world.ctx.network.traffic;
        let of = |number: usize| traffic[number].since(before[number]);
        let busiest = world
            .leaders()
            .into_iter()
            .map(of)
            .max_by_key(|one| one.messages());
        let Some(busiest) = busiest else {
            return;
        };
        self.peak_messages = self.peak_messages.max(busiest.messages());
        self.led.sent += busiest.sent;
        self.led.received += busiest.received;
        self.led.sent_bytes += busiest.sent_bytes;
        self.led.received_bytes += busiest.received_bytes;
        self.led_for += SECOND;
    }

    fn load(&self, message_cost: Duration, policy_ns: u64, seconds: f64) -> BrokerLoad {
        let led_for = self.led_for.as_secs_f64().max(1.0);
        let messages_s = self.led.messages() as f64 / led_for;
        BrokerLoad {
            messages_s,
            bytes_s: self.led.bytes() as f64 / led_for,
            peak_messages: self.peak_messages,
            message_load: messages_s * message_cost.as_secs_f64(),
            policy_load: policy_ns as f64 / 1e9 / seconds,
        }
    }
}
