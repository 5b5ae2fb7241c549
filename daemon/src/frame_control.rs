//! Executes the actions of the frames allocator.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. The allocator is pure: it
//! consumes events and returns the actions to execute. This module raises and lowers limits in
//! tenants' ledgers, sends revocations, and kills tenants that miss them.
//!
//! Rule: a tenant's memory is not trusted beyond what the allocator granted.

mod notices;
mod resident;

use crate::config::Memory;
use crate::connections::Connections;
use crate::machine;
use crate::stall::{self, Stall};
use crate::tenant::UnsentRevocation;
use crate::tenants::Tenants;
use frames::allocator::{
    Action, Allocator, AllocatorConfig, AllocatorError, CleaningRate, FrameRequest, FrameUsage,
    Placement, TenantId, TenantStats,
};
use protocol::contract_spec::FrameSpec;
use protocol::{DaemonEvent, TenantNumber};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The least that is requested at a time for a tenant: one that grows is granted frames by the MiB.
const GRANT_BATCH: u32 = 256;
/// The most memory of its own that a pager may have in each process, beside the frames.
pub(crate) const PAGER_RESERVE: u64 = 8 << 20;
/// Frames that a tenant may have resident beyond those it owns before more frames of its guarantee are
/// reserved for them: the kernel's count and the ledger are never read at the same moment.
pub(crate) const UNPAGED_ALLOWANCE: u32 = 2048;

/// The frames allocator of the machine, and the tenants that it serves.
pub(crate) struct FrameControl {
    pub tenants: Tenants,
    allocator: Allocator,
    begin: Instant,
    /// The latest time that [`FrameControl::now`] returned.
    latest: Cell<Duration>,
    stall: Stall,
    /// Number of the last revocation of any tenant. It must not wrap, since an answer counts for all earlier revocations.
    round: u64,
}

impl FrameControl {
    /// Manages the frames of the configuration. `restarted` is true if tenants of an earlier daemon
    /// are awaited.
    pub fn new(tenants: Tenants, config: &Memory, managed: u32, restarted: bool) -> Self {
        let settings = AllocatorConfig {
            managed,
            deadline: config.revocation_deadline.0,
            stall: stall::MAX_EXTENSION,
            notice: config.reduction_notice.0,
            allowance: UNPAGED_ALLOWANCE,
            topology: machine::topology(),
        };
        Self {
            tenants,
            allocator: match restarted {
                true => Allocator::restarted(settings, config.restart_grace.0),
                false => Allocator::new(settings),
            },
            begin: Instant::now(),
            latest: Cell::default(),
            stall: Stall::new(),
            round: 0,
        }
    }

    /// Time since the start, as the allocator counts it: without pauses in which the daemon did not run.
    pub fn now(&self) -> Duration {
        let now = self.begin.elapsed().saturating_sub(self.stall.paused());
        // The time between the last count and a pause is counted as paused, too: the clock does not go back by it.
        self.latest.set(self.latest.get().max(now));
        self.latest.get()
    }

    /// Time, until the last count of stalls, in which the daemon did not run.
    pub fn paused(&self) -> Duration {
        self.stall.paused()
    }

    /// The tenants' connections.
    pub fn connections(&self) -> &Connections {
        &self.tenants.connections
    }

    /// The allocator's figures.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// A tenant's figures.
    pub fn stats(&self, number: TenantNumber) -> Option<TenantStats> {
        self.allocator.stats(TenantId(number))
    }

    /// Time until the allocator's next deadline.
    pub fn timeout(&self) -> Option<Duration> {
        let next = self.allocator.next_timeout()?;
        Some(next.saturating_sub(self.now()))
    }

    /// Extends deadlines by the time that threads have waited for a processor until now. Returns that time.
    pub fn count_stall(&mut self) -> Duration {
        let total = self.stall.total();
        self.allocator.on_stalled(total);
        total
    }

    /// Returns true if the kernel reports how long threads wait for a processor.
    pub fn is_stall_measured(&self) -> bool {
        self.stall.is_measured()
    }

    /// Enforces deadlines.
    pub fn tick(&mut self) {
        let actions = self.allocator.tick(self.now());
        self.execute(actions);
    }

    /// Manages another number of frames.
    pub fn set_managed(&mut self, managed: u32) -> Result<(), AllocatorError> {
        let actions = self.allocator.set_managed(managed, self.now())?;
        self.execute(actions);
        Ok(())
    }

    /// Takes over how long revocations and notices of lowered guarantees last.
    pub fn set_times(&mut self, config: &Memory) {
        let (deadline, notice) = (config.revocation_deadline.0, config.reduction_notice.0);
        self.allocator.set_times(deadline, notice, self.now());
    }

    /// Admits a contract.
    pub fn admit(
        &mut self,
        number: TenantNumber,
        contract: FrameSpec,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.allocator
            .admit(TenantId(number), contract.into(), cleaning)
    }

    /// Admits a contract of an earlier daemon, with `n` frames.
    pub fn readmit(
        &mut self,
        number: TenantNumber,
        contract: FrameSpec,
        n: u32,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.allocator
            .readmit(TenantId(number), contract.into(), n, cleaning)
    }

    /// Checks that a contract can be changed so.
    pub fn check_set_contract(
        &self,
        number: TenantNumber,
        contract: FrameSpec,
    ) -> Result<(), AllocatorError> {
        let id = TenantId(number);
        self.allocator.check_set_contract(id, contract.into())
    }

    /// Changes a contract.
    pub fn set_contract(
        &mut self,
        number: TenantNumber,
        contract: FrameSpec,
    ) -> Result<(), AllocatorError> {
        let (id, now) = (TenantId(number), self.now());
        let actions = self.allocator.set_contract(id, contract.into(), now)?;
        self.execute(actions);
        Ok(())
    }

    /// Checks that the rate at which a tenant can clean frames can be changed so.
    pub fn check_set_cleaning(
        &self,
        number: TenantNumber,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        self.allocator
            .check_set_cleaning(TenantId(number), cleaning, self.now())
    }

    /// Sets the rate at which a tenant can clean frames.
    pub fn set_cleaning(
        &mut self,
        number: TenantNumber,
        cleaning: CleaningRate,
    ) -> Result<(), AllocatorError> {
        let (id, now) = (TenantId(number), self.now());
        self.allocator.set_cleaning(id, cleaning, now)
    }

    /// Frees the frames of a tenant that has ended or given them back: they can be granted.
    pub fn on_tenant_gone(&mut self, number: TenantNumber) {
        let actions = self.allocator.on_tenant_gone(TenantId(number), self.now());
        self.execute(actions);
    }

    /// Frames that a tenant can own while each other tenant has its frames, or its guarantee if that is more:
    /// a tenant that is away may yet come back for it.
    pub fn unclaimed_beside(&self, number: TenantNumber) -> u32 {
        let id = TenantId(number);
        let others = self.allocator.all_stats().filter(|view| view.tenant != id);
        let taken: u64 = others
            .map(|view| u64::from((view.held() - view.beyond).max(view.contract.g)))
            .sum();
        u64::from(self.allocator.managed()).saturating_sub(taken) as u32
    }

    /// Requests frames for a tenant whose allocation reached its limit. The ledger signals this once, until the limit is
    /// raised: the allocator remembers a request that it cannot grant now.
    pub fn on_pressure(&mut self, number: TenantNumber) {
        let Some(quota) = self.quota(number) else {
            return;
        };
        if !quota.is_under_pressure() {
            return;
        }
        let (limit, wanted) = (quota.limit(), quota.wanted());
        let k = wanted.max(limit / 4).max(GRANT_BATCH);
        self.request(number, k);
    }

    /// Requests frames on behalf of a tenant.
    pub fn request(&mut self, number: TenantNumber, k: u32) {
        self.report_usage(number);
        let (id, now) = (TenantId(number), self.now());
        let frames = self.tenants.get(number).and_then(|t| t.frames.as_ref());
        let placement = frames.map_or(Placement::Any, |frames| frames.placement);
        let k = match placement {
            Placement::Huge => k.next_multiple_of(wired::HUGE_RANGE_PAGES as u32),
            Placement::Any | Placement::Node(_) => k,
        };
        let request = FrameRequest { k, placement };
        if let Ok(actions) = self.allocator.request(id, request, now) {
            self.execute(actions);
        }
    }

    /// Reports the use that a tenant's ledger shows to the allocator.
    pub fn report_usage(&mut self, number: TenantNumber) {
        if let Some(quota) = self.quota(number) {
            let usage = FrameUsage {
                used: quota.committed(),
                ready: 0,
                fixed: quota.fixed(),
            };
            self.allocator.report_usage(TenantId(number), usage);
        }
    }

    /// Handles a tenant's report that revocations up to `round` are done.
    pub fn on_revocation_done(&mut self, number: TenantNumber, round: u64) {
        let Some(k) = self.tenants.get_mut(number).map(|t| t.acknowledge(round)) else {
            return;
        };
        if k > 0 {
            self.report_usage(number);
            let actions = self.allocator.on_answer(TenantId(number), k, self.now());
            self.execute(actions);
        }
    }

    /// The connection of a tenant if it owes frames: its answer may have arrived.
    pub fn connection_if_owing(&self, number: TenantNumber) -> Option<u64> {
        let owed = self.stats(number).map_or(0, |stats| stats.owed);
        let token = self.tenants.get(number)?.connection;
        token.filter(|_| owed > 0)
    }

    /// Executes actions, and those that result from them, until none is left.
    pub fn execute(&mut self, actions: Vec<Action>) {
        let mut left = VecDeque::from(actions);
        while let Some(action) = left.pop_front() {
            match action {
                Action::Grant { tenant, k } => {
                    if let Some(quota) = self.quota(tenant.0) {
                        quota.raise(k);
                    }
                }
                Action::TakeUnused { victim, k } => {
                    let took = self.quota(victim.0).map_or(0, |quota| quota.take_unused(k));
                    // Its results come before later actions.
                    for result in self
                        .allocator
                        .on_taken(victim, took, self.now())
                        .into_iter()
                        .rev()
                    {
                        left.push_front(result);
                    }
                }
                Action::Revoke {
                    victim,
                    k,
                    keep,
                    by,
                } => self.revoke(victim.0, k, keep, by),
                Action::Kill { victim, violation } => {
                    let had = self.describe(victim.0);
                    tracing::warn!("tenant {victim} is killed: {violation}{had}");
                    self.tenants.kill(victim.0);
                }
                Action::Notify { tenant, notice } => self.notify(tenant.0, notice),
            }
        }
    }

    pub fn revoke(&mut self, number: TenantNumber, k: u32, keep: u32, by: Duration) {
        self.round += 1;
        let round = self.round;
        let frames = self.tenants.get_mut(number).and_then(|t| t.frames.as_mut());
        if let Some(frames) = frames {
            frames.rounds.push_back((round, k));
        }
        self.send_revocation(number, UnsentRevocation { round, keep, by });
    }

    fn send_revocation(&mut self, number: TenantNumber, revocation: UnsentRevocation) {
        let UnsentRevocation { round, keep, by } = revocation;
        let event = DaemonEvent::Revoke {
            round,
            keep,
            within: by.saturating_sub(self.now()),
        };
        let is_sent = self.tenants.send(number, &event);
        let frames = self.tenants.get_mut(number).and_then(|t| t.frames.as_mut());
        if let Some(frames) = frames {
            frames.unsent = (!is_sent).then_some(revocation);
        }
    }

    /// Sends a tenant that reads again the revocation that did not fit into its queue.
    pub fn on_writable(&mut self, number: TenantNumber) {
        let frames = self.tenants.get(number).and_then(|t| t.frames.as_ref());
        if let Some(revocation) = frames.and_then(|frames| frames.unsent) {
            self.send_revocation(number, revocation);
        }
    }

    /// Updates the records of tenants whose contract of frames has changed, or whose notice is over, and returns
    /// these tenants. A lowered contract is in force only after its notice, and recorded as later until then,
    /// so a daemon that is restarted meanwhile keeps the notice as well.
    pub fn update_records(&mut self) -> Vec<TenantNumber> {
        let mut changed = Vec::new();
        for (number, tenant) in self.tenants.iter_mut() {
            let Some(stats) = self.allocator.stats(TenantId(number)) else {
                continue;
            };
            let frames = stats.contract.into();
            let later = stats.later.map(|(contract, _)| contract.into());
            let record = &mut tenant.record;
            if (record.terms.frames, record.later) != (frames, later) {
                (record.terms.frames, record.later) = (frames, later);
                changed.push(number);
            }
        }
        changed
    }

    fn quota(&mut self, number: TenantNumber) -> Option<&mut frames::LimitControl> {
        self.tenants
            .get_mut(number)?
            .frames
            .as_mut()?
            .quota
            .as_mut()
    }
}
