//! What the allocator's notices become: events to tenants, and lines for the operator.

use super::FrameControl;
use frames::allocator::TenantNotice;
use protocol::contract_spec::ContractSpec;
use protocol::{DaemonEvent, TenantNumber};
use std::time::Duration;
use wired::{Bytes, PAGE};

impl FrameControl {
    pub(super) fn notify(&mut self, number: TenantNumber, notice: TenantNotice) {
        match notice {
            TenantNotice::Contract { contract, from } => {
                let notice = from.saturating_sub(self.now());
                let Some(tenant) = self.tenants.get(number) else {
                    return;
                };
                let terms = ContractSpec {
                    frames: contract.into(),
                    ..tenant.record.terms
                };
                self.tenants
                    .post(number, &DaemonEvent::Changed { terms, notice });
            }
            TenantNotice::Unpaged { frames } => {
                self.tenants.post(number, &DaemonEvent::Unpaged { frames });
            }
            TenantNotice::Over { resident, n, by } => {
                let within = by.saturating_sub(self.now());
                let event = DaemonEvent::Over {
                    resident,
                    owned: n,
                    within,
                };
                self.tenants.post(number, &event);
                tracing::warn!(
                    "tenant {number} has {resident} frames resident, by the kernel's count, and owns {n}: it has \
                     {:.0?} to give them up",
                    within.max(Duration::from_millis(1))
                );
            }
        }
    }

    /// What a tenant that is killed had, for the operator.
    pub(super) fn describe(&self, number: TenantNumber) -> String {
        let Some(tenant) = self.tenants.get(number) else {
            return String::new();
        };
        let frames = |n: u32| Bytes(u64::from(n) * PAGE as u64);
        let n = frames(self.stats(number).map_or(0, |stats| stats.n));
        let (record, resident) = (&tenant.record, frames(tenant.resident));
        format!(
            "; {} (process {}) had {n} granted, {resident} resident, and a contract for {}",
            record.name, record.pid, record.terms
        )
    }
}
