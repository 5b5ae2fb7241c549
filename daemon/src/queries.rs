//! Queries at the control socket: contracts, capacity, the trace of the disk.
//!
//! Rule: users see their own contracts, administrators all of them.

use crate::connections::Connection;
use crate::refusal::Refusal;
use crate::{Daemon, policy};
use hdrhistogram::Histogram;
use protocol::{CapacitySummary, DaemonEvent, TenantInfo, TenantNumber, TenantRequest};
use rustix::fd::AsFd;
use std::time::Duration;

impl Daemon {
    /// Answers a query, within the rate limit of the user.
    pub(crate) fn query(&mut self, token: u64, query: &TenantRequest) {
        let uid = self.connections().get(token).map(|c| c.identity.uid);
        let limits = &mut self.connections_mut().user_limits;
        if let Some(why) = uid.and_then(|uid| limits.over_query_rate(uid)) {
            return self.connections().refuse(token, why);
        }
        match query {
            TenantRequest::Trace { from } => self.trace(token, *from),
            TenantRequest::Capacity => {
                _ = self
                    .connections()
                    .send(token, &DaemonEvent::Capacity(self.capacity()), &[])
            }
            _ => self.list(token, 0),
        }
    }

    fn is_admin(&self, token: u64) -> bool {
        let own = rustix::process::getuid().as_raw();
        let is_admin =
            |c: &Connection| policy::is_admin(&self.contracts.config.allow, own, &c.identity);
        self.connections().get(token).is_some_and(is_admin)
    }

    /// Returns true if the peer may see a contract: one of its own user, or any as an administrator.
    pub(crate) fn may_see(&self, token: u64, number: TenantNumber) -> bool {
        let uid = self.connections().get(token).map(|c| c.identity.uid);
        let own = self.tenants().get(number).map(|t| t.record.uid);
        self.is_admin(token) || (uid.is_some() && uid == own)
    }

    /// Lists contracts from a number on, as many as fit into the peer's queue: the rest follows
    /// when the peer has read.
    pub(crate) fn list(&mut self, token: u64, from: TenantNumber) {
        let numbers = self.tenants().numbers();
        for number in numbers.into_iter().filter(|number| *number >= from) {
            self.contracts.frames.report_usage(number);
            if self.may_see(token, number)
                && let Some(info) = self.tenant_info(number)
                && !(self.connections()).send(token, &DaemonEvent::Tenant(Box::new(info)), &[])
            {
                return self.connections_mut().set_list_from(token, Some(number));
            }
        }
        let is_sent = self.connections().send(token, &DaemonEvent::End, &[]);
        let next = (!is_sent).then_some(TenantNumber::MAX);
        self.connections_mut().set_list_from(token, next);
    }

    /// The capacity and what is promised of it: no secret, since a refusal has the same figures.
    fn capacity(&self) -> CapacitySummary {
        let usage = self.contracts.disk.swap.usage();
        let promised = self.tenants().iter().filter(|(_, t)| t.client.is_some());
        let (processors, reserved) = self.contracts.fault_rates.processors();
        CapacitySummary {
            tenants: self.tenants().len() as u32,
            managed: self.contracts.frames.allocator().managed(),
            guaranteed: self.contracts.frames.allocator().guaranteed(),
            free: self.contracts.frames.allocator().free(),
            swap: usage.total,
            swap_free: usage.free,
            capacity: f64::from(self.contracts.disk.model.capacity),
            promised: promised.fold(0.0, |sum, (_, t)| sum + t.record.terms.disk.share()),
            channels: (self.tenants().iter())
                .map(|(_, t)| t.channels.len() as u32)
                .sum(),
            processors,
            reserved,
            faults: self.contracts.fault_rates.all(),
        }
    }

    pub(crate) fn tenant_info(&self, number: TenantNumber) -> Option<TenantInfo> {
        let tenant = self.tenants().get(number)?;
        let record = &tenant.record;
        let view = self.contracts.frames.stats(number);
        let disk = tenant
            .client
            .and_then(|client| self.contracts.disk.usd.client_stats(client))
            .unwrap_or_default();
        Some(TenantInfo {
            tenant: number,
            name: record.name.clone(),
            pid: record.pid as u32,
            uid: record.uid,
            terms: record.terms,
            later: view.and_then(|view| {
                let (contract, from) = view.later?;
                Some((
                    contract.into(),
                    from.saturating_sub(self.contracts.frames.now()),
                ))
            }),
            n: view.map_or(0, |view| view.held()),
            revocable: view.map_or(0, |view| view.revocable),
            used: view.map_or(0, |view| view.usage.used + view.unpaged),
            resident: tenant.resident,
            client: tenant.client.map_or(u32::MAX, |client| client.number()),
            charged: Duration::from_nanos(disk.totals.charged.0),
            lax: Duration::from_nanos(disk.totals.lax.0),
            transactions: disk.totals.transactions,
            bytes: disk.totals.bytes,
            waited: percentiles(disk.wait.as_ref()),
            took: percentiles(disk.latency.as_ref()),
            ran_first: tenant.ran_first,
            faults: self.contracts.fault_rates.held(number),
        })
    }

    /// Sends the events of the disk's scheduler since event number `from`, as far as its trace remembers.
    fn trace(&mut self, token: u64, from: u64) {
        if !self.is_admin(token) {
            return self.connections().refuse(token, Refusal::NotAdmin);
        }
        let events = self.contracts.disk.usd.trace().since(from);
        let written = protocol::disk_trace::write(&events);
        match written {
            Ok(memory) => {
                _ = self
                    .connections()
                    .send(token, &DaemonEvent::Trace, &[memory.as_fd()])
            }
            Err(errno) => self.connections().refuse(token, Refusal::NoTrace(errno)),
        }
    }
}

/// p50, p99 and p99.9 of times in nanoseconds; zero without times.
fn percentiles(times: Option<&Histogram<u64>>) -> [Duration; 3] {
    let of = |quantile| times.map_or(0, |times| times.value_at_quantile(quantile));
    [0.5, 0.99, 0.999].map(|quantile| Duration::from_nanos(of(quantile)))
}
