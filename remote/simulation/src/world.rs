//! All hosts, their events, and the faults that befall them.

use crate::client::SimulatedClient;
use crate::config::Config;
use crate::context::{Context, Event, PageStats};
use crate::network::Network;
use crate::queue::EventQueue;
use crate::requests::RequestStats;
use crate::server::SimulatedServer;
use crate::topology::{Node, Topology};
use remote_policy::election::{PeerList, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How far the groups' elections are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Elected {
    /// Some group has no broker, several, or servers that another one's epoch holds.
    No,
    /// Each group has one broker, and every server of it is granted to that one's epoch.
    OneBroker,
    /// And its record has them all.
    AllServers,
}

/// The simulation.
pub(crate) struct World {
    pub ctx: Context,
    pub servers: Vec<SimulatedServer>,
    pub clients: Vec<SimulatedClient>,
}

impl World {
    /// Hosts that are all down.
    pub fn new(config: Config) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let topology = Topology::new(&config, &mut rng);
        let lives = (0..config.servers).map(|number| topology.incarnation(Node(number), 0));
        let incarnations = lives.collect();
        let ctx = Context {
            network: Network::new(&config, topology),
            now: Duration::ZERO,
            queue: EventQueue::default(),
            rng,
            auditor: Default::default(),
            policy_time: Default::default(),
            requests: RequestStats::default(),
            pages: PageStats::default(),
            incarnations,
            last_near: Duration::ZERO,
            config,
        };
        let (servers, clients) = (ctx.config.servers, ctx.config.clients);
        Self {
            servers: (0..servers)
                .map(|number| SimulatedServer::new(Node(number), &ctx))
                .collect(),
            clients: (servers..servers + clients)
                .map(|number| SimulatedClient::new(Node(number), &ctx))
                .collect(),
            ctx,
        }
    }

    /// Starts servers. The membership protocol knows of them after its time.
    pub fn start_servers(&mut self, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            self.servers[number].start(&mut self.ctx);
        }
        self.membership_changes();
    }

    /// Stops servers without a word.
    pub fn stop_servers(&mut self, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            self.servers[number].stop();
        }
        self.membership_changes();
    }

    /// Starts all clients.
    pub fn start_clients(&mut self) {
        for client in &mut self.clients {
            client.start(&mut self.ctx);
        }
    }

    /// Puts hosts on sides that do not reach each other.
    pub fn partition(&mut self, side_of_rack: impl Fn(usize) -> u32) {
        for number in 0..self.servers.len() + self.clients.len() {
            let rack = self.ctx.network.topology.rack_of(Node(number));
            self.ctx.network.set_side(Node(number), side_of_rack(rack));
        }
        self.membership_changes();
    }

    /// Moves a share of the clients to another site.
    pub fn move_clients(&mut self, one_in: usize) {
        let first = self.servers.len();
        for (number, client) in self.clients.iter_mut().enumerate().step_by(one_in) {
            let node = Node(first + number);
            let topology = &mut self.ctx.network.topology;
            let site = topology.site_of(topology.rack_of(node));
            let racks = topology.racks_at((site + 1) % topology.sites());
            let rack = self.ctx.rng.usize(racks);
            topology.move_to(node, rack);
            client.on_moved(&mut self.ctx);
        }
    }

    fn membership_changes(&mut self) {
        self.ctx
            .after(self.ctx.config.membership, Event::Membership);
    }

    /// Lets time pass.
    pub fn run_until(&mut self, until: Duration) {
        while let Some((at, event)) = self.ctx.queue.pop(until) {
            self.ctx.now = at;
            self.on_event(event);
        }
        self.ctx.now = until;
    }

    fn on_event(&mut self, event: Event) {
        let first = self.servers.len();
        let ctx = &mut self.ctx;
        match event {
            Event::Arrive(from, to, message, bytes) => {
                if !ctx.network.is_reachable(from, to) {
                    return;
                }
                let counted_bytes = (!message.is_of_link()).then_some(bytes);
                match self.servers.get(to.0) {
                    Some(server) if server.is_alive => {
                        let at = ctx.network.receive(to, counted_bytes, ctx.now);
                        ctx.queue.push(at, Event::Deliver(from, to, message));
                    }
                    Some(_) => {}
                    // No client has so many messages that one waits for another.
                    None => {
                        ctx.network.receive(to, counted_bytes, ctx.now);
                        self.clients[to.0 - first].on_message(from, *message, ctx);
                    }
                }
            }
            Event::Deliver(from, to, message) => match self.servers.get_mut(to.0) {
                Some(server) if server.is_alive => server.on_message(from, *message, ctx),
                _ => {}
            },
            Event::Period(node, life) => self.servers[node.0].on_period(life, ctx),
            Event::Beat(node) => self.clients[node.0 - first].on_beat(&mut self.servers, ctx),
            Event::NewObject(node) => self.clients[node.0 - first].on_new_object(ctx),
            Event::Patience(node, id) => self.clients[node.0 - first].on_patience(id, ctx),
            Event::Filled(node, object, server) => {
                self.clients[node.0 - first].on_filled(object, server, ctx);
            }
            Event::Membership => self.on_membership(),
        }
    }

    /// The servers that are up, by the group in which they reach each other.
    pub fn groups(&self) -> BTreeMap<u32, Vec<usize>> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (number, server) in self.servers.iter().enumerate() {
            if server.is_alive {
                let side = self.ctx.network.side(Node(number));
                groups.entry(side).or_default().push(number);
            }
        }
        groups
    }

    fn on_membership(&mut self) {
        for members in self.groups().into_values() {
            let ids = members
                .iter()
                .map(|number| self.ctx.network.topology.id(Node(*number)));
            let ids: Arc<PeerList> = Arc::new(ids.collect());
            for number in members {
                self.servers[number].on_membership(&ids);
            }
        }
    }

    /// How far the elections are.
    pub fn elected(&self) -> Elected {
        let groups = self.groups();
        let elected = groups.values().map(|members| self.elected_in(members));
        elected.min().unwrap_or(Elected::No)
    }

    fn elected_in(&self, members: &[usize]) -> Elected {
        let mut brokers = members
            .iter()
            .map(|number| &self.servers[*number])
            .filter(|server| server.broker.is_some());
        let (Some(leader), None) = (brokers.next(), brokers.next()) else {
            return Elected::No;
        };
        let Role::Broker { epoch, .. } = leader.candidate.role() else {
            return Elected::No;
        };
        let is_held = |number: &usize| self.servers[*number].capacity.epoch() == *epoch;
        if !members.iter().all(is_held) {
            return Elected::No;
        }
        let known: BTreeSet<_> = leader
            .broker
            .iter()
            .flat_map(|broker| broker.servers())
            .collect();
        let is_known =
            |number: &usize| known.contains(&self.ctx.network.topology.id(Node(*number)));
        match members.iter().all(is_known) && known.len() == members.len() {
            true => Elected::AllServers,
            false => Elected::OneBroker,
        }
    }

    /// The hosts that are brokers of more than their own server.
    pub fn leaders(&self) -> Vec<usize> {
        let leads = |server: &SimulatedServer| match server.candidate.role() {
            Role::Broker { servers, .. } => server.is_alive && servers.len() > 1,
            Role::Follower { .. } => false,
        };
        let servers = self.servers.iter().enumerate();
        servers
            .filter(|(_, server)| leads(server))
            .map(|(number, _)| number)
            .collect()
    }
}
