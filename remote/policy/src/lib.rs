//! The policy of remote paging: which machine's memory holds which pages, and what decides it.
//!
//! *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp, 1991), sections 2 and 3.
//! Every host has a paging server, a broker's [`election::Candidate`] and, for its programs, a
//! service organizer. The parts, from the memory upwards:
//!
//! | part | decides | never |
//! |---|---|---|
//! | [`capacity::ServerCapacity`] | which permits its pages are promised by; what it revokes | promises a page twice |
//! | [`broker::Broker`] | which server issues a permit | grants: servers do |
//! | [`election::Candidate`] | which broker a server obeys | lets a server obey two |
//! | [`organizer::Organizer`] | which server has which object, and what moves | has two copies at one server |
//! | [`hedging`] | which reads are sent twice | sends a network that is slow twice as much |
//! | [`redundancy`] | how many parts an object has, on which servers; what is rebuilt | puts two parts on one server |
//!
//! Rule: this crate reads no clock, keeps no thread and does no I/O. Time comes in as a `Duration`
//! since any fixed point, messages and events come in, and messages and decisions come out, so a
//! simulation of thousands of hosts and a model checker run the code that the daemons run. What
//! goes over the wire is serializable; what an action means is its daemon's.

pub mod bounded_list;
pub mod broker;
pub mod capacity;
pub mod election;
pub mod hedging;
pub mod identity;
pub mod latency;
pub mod lease;
pub mod lru_size;
pub mod organizer;
pub mod permit;
pub mod redundancy;
