//! What the allocator's notices become: events to tenants, and lines for the operator.

use super::FrameControl;
use frames::LimitControl;
use frames::allocator::TenantNotice;
use protocol::contract_spec::ContractSpec;
use protocol::{DaemonEvent, TenantNumber};
use std::time::Duration;
use wired::Bytes;

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
                let event = DaemonEvent::OverGuarantee {
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

    /// Describes the memory and the contract of a tenant that is killed, for the operator.
    pub(super) fn describe(&self, number: TenantNumber) -> String {
        let Some(tenant) = self.tenants.get(number) else {
            return String::new();
        };
        let stats = self.stats(number);
        let held = Bytes::of_pages(stats.map_or(0, |stats| stats.held()));
        let quota = tenant.frames.as_ref().and_then(|it| it.quota.as_ref());
        let nailed = match quota.map_or(0, LimitControl::nailed) {
            0 => String::new(),
            frames => format!(" ({} of them locked or pinned)", Bytes::of_pages(frames)),
        };
        let (record, resident) = (&tenant.record, Bytes::of_pages(tenant.resident));
        format!(
            "; {} (process {}) had {held} granted{nailed}, {resident} resident, and a contract for {}",
            record.name, record.pid, record.terms
        )
    }
}
