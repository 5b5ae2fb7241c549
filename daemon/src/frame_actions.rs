//! Executes the actions of the frames allocator.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.2. The allocator is pure: it
//! consumes events and returns the actions to execute. This module raises and lowers limits in
//! tenants' ledgers, sends revocations, and kills tenants that miss them.
//!
//! Rule: a tenant's memory is not trusted beyond what the allocator granted.

use crate::Daemon;
use crate::jobs::JobResult;
use crate::tenant::TenantPhase;
use frames::allocator::{
    Action, CleaningRate, FrameUsage, Placement, Request, TenantId, TenantNotice,
};
use protocol::contract_spec::ContractSpec;
use protocol::{DaemonEvent, TenantNumber};
use std::time::{Duration, Instant};
use wired::Bytes;
use wired::PAGE;

/// Frames asked for at a time, at least: a tenant that grows is granted by the MiB.
const STEP: u32 = 256;
/// Times the modelled cost that cleaning a frame may take of a slice. The model's is that of a
/// full queue, and one write at a time is charged as long as it lasts: six times as much on
/// the devices seen (`selfpage system calibrate`: 85 us alone, 14 of a full queue). A tenant
/// that faults reads a page for each that it writes, which doubles it.
const SURELY: u64 = 16;
/// What a pager's own memory may come to for each process, beside the frames.
pub(super) const OWN: u64 = 8 << 20;
/// How long the memory of a killed tenant may take to come back.
const LAST: Duration = Duration::from_secs(10);

impl Daemon {
    /// How fast a tenant can surely write frames out by its own share of the disk. Its threads
    /// go on faulting meanwhile, and what they asked of the disk before comes first: that may
    /// be all of the slice that comes next.
    pub(super) fn cleaning(&self, terms: &ContractSpec) -> CleaningRate {
        let page = self.model.cost(disk::cost_model::Op::Write, PAGE as u32);
        let second = Duration::from_secs(1).as_nanos() as f64 * terms.disk.share();
        CleaningRate {
            frames_per_second: (second / (page.0.max(1) * SURELY) as f64) as u32,
            delay: terms.disk.period * 2 - terms.disk.slice,
        }
    }

    /// A tenant's allocation reached its limit. The ledger signals it once, until the limit is
    /// raised: the allocator remembers the request that it cannot grant now.
    pub(super) fn hungry(&mut self, number: TenantNumber) {
        let Some(quota) = self.quota(number) else {
            return;
        };
        if !quota.is_under_pressure() {
            return;
        }
        let (limit, wanted) = (quota.limit(), quota.wanted());
        let k = wanted.max(limit / 4).max(STEP);
        self.ask(number, k);
    }

    /// Requests frames on behalf of a tenant.
    pub(super) fn ask(&mut self, number: TenantNumber, k: u32) {
        self.report(number);
        let (id, now) = (TenantId(number), self.now());
        let frames = self.tenants.get(&number).and_then(|t| t.frames.as_ref());
        let placement = frames.map_or(Placement::Any, |frames| frames.placement);
        let k = match placement {
            Placement::Huge => k.next_multiple_of(wired::HUGE_RANGE_PAGES as u32),
            Placement::Any | Placement::Node(_) => k,
        };
        let request = Request { k, placement };
        if let Ok(orders) = self.allocator.request(id, request, now) {
            self.carry_out(orders);
        }
    }

    /// Reports the use that a tenant's ledger shows to the allocator.
    pub(super) fn report(&mut self, number: TenantNumber) {
        if let Some(quota) = self.quota(number) {
            let usage = FrameUsage {
                used: quota.committed(),
                ready: 0,
            };
            self.allocator.report_usage(TenantId(number), usage);
        }
    }

    /// A tenant reports revocations up to `round` as done.
    pub(super) fn answered(&mut self, number: TenantNumber, round: u32) {
        let Some(k) = self.tenants.get_mut(&number).map(|t| t.answer(round)) else {
            return;
        };
        if k > 0 {
            self.report(number);
            let orders = self.allocator.on_answer(TenantId(number), k, self.now());
            self.carry_out(orders);
        }
    }

    /// Receives from a tenant that owes frames before its deadline is enforced: its answer may
    /// have arrived.
    pub(super) fn take_answers(&mut self, number: TenantNumber) {
        let owed = self.allocator.stats(TenantId(number)).map_or(0, |v| v.owed);
        let token = self.tenants.get(&number).and_then(|t| t.connection);
        if let Some(token) = token.filter(|_| owed > 0) {
            self.at_connection(token);
        }
    }

    /// Executes actions, and those that result from them, until none is left.
    pub(super) fn carry_out(&mut self, orders: Vec<Action>) {
        let mut left = std::collections::VecDeque::from(orders);
        while let Some(order) = left.pop_front() {
            match order {
                Action::Grant { tenant, k } => {
                    if let Some(quota) = self.quota(tenant.0) {
                        quota.raise(k);
                    }
                }
                Action::TakeUnused { victim, k } => {
                    let took = self.quota(victim.0).map_or(0, |quota| quota.take_unused(k));
                    // Its results come before later actions.
                    for order in self
                        .allocator
                        .on_taken(victim, took, self.now())
                        .into_iter()
                        .rev()
                    {
                        left.push_front(order);
                    }
                }
                Action::Revoke {
                    victim,
                    k,
                    keep,
                    by,
                } => self.revoke(victim.0, k, keep, by),
                Action::Kill { victim, violation } => {
                    let had = self.listed(victim.0).map_or_else(String::new, |listed| {
                        let frames = |n: u32| Bytes(u64::from(n) * PAGE as u64);
                        let (n, resident) = (frames(listed.n), frames(listed.resident));
                        format!(
                            "; {} (process {}) had {n} granted, {resident} resident, and a contract for {}",
                            listed.name, listed.pid, listed.terms
                        )
                    });
                    tracing::warn!("tenant {victim} is killed: {violation}{had}");
                    self.kill(victim.0);
                }
                Action::Notify { tenant, notice } => self.tell(tenant.0, notice),
            }
        }
    }

    pub(super) fn revoke(&mut self, number: TenantNumber, k: u32, keep: u32, by: Duration) {
        self.round = self.round.wrapping_add(1);
        let (round, within) = (self.round, by.saturating_sub(self.now()));
        let frames = self
            .tenants
            .get_mut(&number)
            .and_then(|t| t.frames.as_mut());
        if let Some(frames) = frames {
            frames.rounds.push_back((round, k));
        }
        self.say(
            number,
            &DaemonEvent::Revoke {
                round,
                keep,
                within,
            },
        );
    }

    fn tell(&mut self, number: TenantNumber, notice: TenantNotice) {
        match notice {
            TenantNotice::Contract { contract, from } => {
                let notice = from.saturating_sub(self.now());
                let Some(tenancy) = self.tenants.get(&number) else {
                    return;
                };
                let terms = ContractSpec {
                    frames: contract.into(),
                    ..tenancy.record.terms
                };
                self.say(number, &DaemonEvent::Changed { terms, notice });
            }
            TenantNotice::Over { resident, n, by } => {
                let within = by.saturating_sub(self.now());
                tracing::warn!(
                    "tenant {number} has {resident} frames resident, by the kernel's count, and owns {n}: it has \
                     {:.0?} to give them up",
                    within.max(Duration::from_millis(1))
                );
            }
        }
    }

    /// Persists the contracts of frames that differ from the persisted ones: those that were
    /// changed, and those whose notice is over. A lowered contract is written only after its
    /// notice, so a daemon that is started again meanwhile keeps the notice as well.
    pub(super) fn remember_frames(&mut self) -> Result<(), String> {
        let mut changed = Vec::new();
        for (number, tenancy) in &mut self.tenants {
            let Some(view) = self.allocator.stats(TenantId(*number)) else {
                continue;
            };
            let frames = view.contract.into();
            let later = view.later.map(|(contract, _)| contract.into());
            let record = &mut tenancy.record;
            if (record.terms.frames, record.later) != (frames, later) {
                (record.terms.frames, record.later) = (frames, later);
                changed.push(*number);
            }
        }
        let written = changed.into_iter().map(|number| self.remember(number));
        written.fold(Ok(()), Result::and)
    }

    /// Kills a tenant's processes on a job thread; [`JobResult`] reports the end.
    pub(super) fn kill(&mut self, number: TenantNumber) {
        let Some(tenancy) = self.tenants.get_mut(&number) else {
            return;
        };
        if matches!(tenancy.phase, TenantPhase::Ending | TenantPhase::Leaving) {
            return;
        }
        tenancy.phase = TenantPhase::Ending;
        let Some(group) = tenancy.frames.as_ref().map(|frames| frames.group.clone()) else {
            return self.errands.done(JobResult::Killed(number));
        };
        self.errands.start(move || {
            group.empty(LAST);
            JobResult::Emptied(number)
        });
    }

    /// The memory of a killed tenant is freed: its frames can be granted while its processes
    /// end.
    pub(super) fn emptied(&mut self, number: TenantNumber) {
        let orders = self.allocator.on_tenant_gone(TenantId(number), self.now());
        self.carry_out(orders);
        let frames = self.tenants.get(&number).and_then(|t| t.frames.as_ref());
        let Some(group) = frames.map(|frames| frames.group.clone()) else {
            return self.errands.done(JobResult::Killed(number));
        };
        self.errands.start(move || {
            group.kill(LAST);
            JobResult::Killed(number)
        });
    }

    /// Compares what tenants have resident with what they own.
    pub(super) fn count_resident(&mut self) {
        let numbers: Vec<_> = self.tenants.keys().copied().collect();
        for number in numbers {
            self.report(number);
            // The thread that had to ring may have been killed before.
            self.hungry(number);
            let Some(frames) = self.tenants.get(&number).and_then(|t| t.frames.as_ref()) else {
                continue;
            };
            let owned = self
                .allocator
                .stats(TenantId(number))
                .map_or(0, |view| view.n);
            let resident = frames.group.resident(OWN);
            let (group, since) = (frames.group.clone(), frames.counting);
            match since {
                _ if resident <= u64::from(owned) * PAGE as u64 => {}
                None => {
                    self.set_counting(number, Some(Instant::now()));
                    self.errands
                        .start(move || JobResult::Counted(number, group.resident_exactly(OWN)));
                    continue;
                }
                Some(since) if since.elapsed() < LAST => continue,
                // Fall back to RssAnon when the exact count timed out.
                Some(_) => {}
            }
            self.found_resident(number, resident);
        }
    }

    fn set_counting(&mut self, number: TenantNumber, since: Option<Instant>) {
        let tenancy = self.tenants.get_mut(&number);
        if let Some(frames) = tenancy.and_then(|tenancy| tenancy.frames.as_mut()) {
            frames.counting = since;
        }
    }

    /// The exact RSS of a tenant is known.
    pub(super) fn counted_exactly(&mut self, number: TenantNumber, bytes: u64) {
        self.set_counting(number, None);
        self.found_resident(number, bytes);
    }

    fn found_resident(&mut self, number: TenantNumber, bytes: u64) {
        let resident = u32::try_from(bytes / PAGE as u64).unwrap_or(u32::MAX);
        if let Some(tenancy) = self.tenants.get_mut(&number) {
            tenancy.resident = resident;
        }
        let orders = self
            .allocator
            .on_resident(TenantId(number), resident, self.now());
        self.carry_out(orders);
    }

    fn quota(&mut self, number: TenantNumber) -> Option<&mut frames::LimitControl> {
        self.tenants
            .get_mut(&number)?
            .frames
            .as_mut()?
            .quota
            .as_mut()
    }
}
