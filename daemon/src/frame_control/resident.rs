//! Resident memory of tenants, compared with the frames that they own.
//!
//! Rule: a tenant's ledger is not trusted. What the kernel counts decides. To count an address space once waits for
//! the tenant's processes, for as long as these like: so that is done on a job thread.

use super::{FrameControl, PAGER_RESERVE};
use crate::jobs::JobResult;
use crate::tenant::{Tenant, TenantPhase};
use crate::tenants::KILL_TIMEOUT;
use frames::allocator::TenantId;
use protocol::TenantNumber;
use std::io;
use std::time::Instant;
use wired::PAGE;

impl FrameControl {
    /// Compares what tenants have resident with what they own.
    pub fn measure_rss_all(&mut self) {
        for number in self.tenants.numbers() {
            self.report_usage(number);
            // The thread that had to ring may have been killed before.
            self.on_pressure(number);
            // Until it may own frames it has its memory under the limits that it had before. One that is awaited
            // has frames of an earlier daemon, and `memory.restart_grace` to show how many.
            let is_measured =
                |t: &&Tenant| t.may_own_frames() && !matches!(t.phase, TenantPhase::Away(_));
            let tenant = self.tenants.get(number).filter(is_measured);
            let Some(frames) = tenant.and_then(|tenant| tenant.frames.as_ref()) else {
                continue;
            };
            let owned = self.stats(number).map_or(0, |stats| stats.held());
            let owned = u64::from(owned) * PAGE as u64;
            let (group, since) = (frames.group.clone(), frames.measured_since);
            match since {
                None => {
                    self.set_measured_since(number, Some(Instant::now()));
                    self.tenants.jobs.start(move || {
                        let counted = group.resident(PAGER_RESERVE);
                        let counted = match counted {
                            Ok(counted) if counted > owned => group.resident_exactly(PAGER_RESERVE),
                            counted => counted,
                        };
                        JobResult::ExactRss(number, counted)
                    });
                }
                Some(since) if since.elapsed() < KILL_TIMEOUT => {}
                // The count did not return.
                Some(_) => self.on_rss(number, group.resident_estimate(PAGER_RESERVE)),
            }
        }
    }

    fn set_measured_since(&mut self, number: TenantNumber, since: Option<Instant>) {
        let tenant = self.tenants.get_mut(number);
        if let Some(frames) = tenant.and_then(|tenant| tenant.frames.as_mut()) {
            frames.measured_since = since;
        }
    }

    /// The exact RSS of a tenant is known, or cannot be: the next count may.
    pub fn on_exact_rss(&mut self, number: TenantNumber, bytes: io::Result<u64>) {
        self.set_measured_since(number, None);
        match bytes {
            Ok(bytes) => self.on_rss(number, bytes),
            Err(why) => tracing::debug!("the memory of tenant {number} is not counted: {why}"),
        }
    }

    fn on_rss(&mut self, number: TenantNumber, bytes: u64) {
        let resident = u32::try_from(bytes / PAGE as u64).unwrap_or(u32::MAX);
        if let Some(tenant) = self.tenants.get_mut(number) {
            tenant.resident = resident;
        }
        let actions = self
            .allocator
            .on_resident(TenantId(number), resident, self.now());
        self.execute(actions);
    }
}
