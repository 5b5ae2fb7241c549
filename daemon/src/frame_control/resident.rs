//! Resident memory of tenants, compared with the frames that they own.
//!
//! Rule: a tenant's ledger is not trusted; the kernel's count decides. Counting each address space once waits for
//! the tenant's processes, for as long as these choose: so it is done on a job thread.

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
    /// Compares the resident memory of tenants with the frames that they own.
    pub fn measure_rss_all(&mut self) {
        for number in self.tenants.numbers() {
            self.report_usage(number);
            // The thread that was to ring the bell may have been killed before it did.
            self.on_pressure(number);
            // Until a tenant may own frames, its memory is within the limits that it had before its contract. A tenant
            // that is away has frames of an earlier daemon, and `memory.restart_grace` to report how many.
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
                // The job has not returned: the estimate does not block.
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

    /// Handles the exact RSS of a tenant, or why it could not be counted: then the next measurement decides.
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
