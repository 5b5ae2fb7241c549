//! Processor time of the policy of brokers, on the machine that simulates.
//!
//! Rule: nothing of the simulation depends on it. It is what the policy alone takes: no system
//! call, no TLS, no copy of a message.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the policy was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyCall {
    /// A period of a candidate that controls servers.
    BrokerPeriod,
    /// A bid, a redirect or a claim.
    ElectionMessage,
    /// A candidate that lost conceded its servers.
    Concession,
    /// A server granted itself.
    Granted,
    /// A server's report.
    Report,
    /// A server's update.
    Update,
    /// A client requests a permit.
    Allocate,
    /// A client requests another size.
    Reallocate,
    /// A server answers.
    Answer,
    /// A server died.
    ServerLost,
}

/// Calls of one kind, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PolicyCost {
    /// Calls.
    pub calls: u64,
    /// Their time in all.
    pub total_ns: u64,
    /// The longest.
    pub most_ns: u64,
}

impl PolicyCost {
    /// Of one call, on average.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns / self.calls.max(1)
    }
}

/// The costs by kind.
#[derive(Debug, Default)]
pub(crate) struct PolicyTime {
    costs: BTreeMap<PolicyCall, PolicyCost>,
}

impl PolicyTime {
    /// Calls the policy, and counts its time.
    pub fn measure<T>(&mut self, call: PolicyCall, policy: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = policy();
        self.enter(call, start.elapsed());
        result
    }

    fn enter(&mut self, call: PolicyCall, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cost = self.costs.entry(call).or_default();
        cost.calls += 1;
        cost.total_ns += nanos;
        cost.most_ns = cost.most_ns.max(nanos);
    }

    /// The costs since the last call of this.
    pub fn take(&mut self) -> BTreeMap<PolicyCall, PolicyCost> {
        std::mem::take(&mut self.costs)
    }
}
