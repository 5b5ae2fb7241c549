//! A deterministic simulation of thousands of paging servers and clients.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991) ran on a handful of
//! notebooks; this crate runs `remote/policy` on as many hosts as fit in memory, to find what one
//! broker can bear, and what then. Servers, brokers, candidates and organizers are the ones of
//! the daemons: the simulation has a clock, a network and programs that create objects, and
//! carries messages between the parts of the policy.
//!
//! | file | has |
//! |---|---|
//! | `queue.rs` | the events to come, in the order of their time |
//! | `topology.rs` | which host is near which: racks and sites |
//! | `network.rs` | delay, loss, partitions, links, and what each host sent and received |
//! | `message.rs` | the messages, and how long each is on the wire |
//! | `server.rs` | a host's candidate, broker and capacity |
//! | `client.rs` | a client's organizer, objects and requests |
//! | `audit.rs` | the rules that no run may break |
//! | `world.rs` | all of it, and the faults |
//! | `scenario.rs` | what happens to it |
//!
//! Rule: a run is a function of its configuration and seed. The one thing that is read of the
//! machine is the time that the policy of brokers takes (`policy_time.rs`), and nothing depends on
//! it.

mod audit;
mod client;
mod config;
mod context;
mod message;
mod network;
mod policy_time;
mod queue;
mod report;
mod requests;
mod scenario;
mod server;
mod topology;
mod world;

pub use config::Config;
pub use policy_time::{PolicyCall, PolicyCost};
pub use report::{Balance, BrokerLoad, HostLoad, Pages, PhaseReport, Requests, ScenarioReport};
pub use scenario::Scenario;
