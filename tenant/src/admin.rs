//! Queries and administration without a contract: the contracts, what is free, and changes.

use super::TenantError;
use super::connection::{administer, reach, recv_administered};
use protocol::contract_spec::{DiskChange, FrameSpec};
use protocol::{CapacitySummary, DaemonEvent, TenantInfo, TenantNumber, TenantRequest};
use std::path::Path;

/// The contracts that the daemon at `path` keeps, as far as the caller may see them.
pub fn list(path: &Path) -> Result<Vec<TenantInfo>, TenantError> {
    ask_for_list(path, &TenantRequest::List)
}

/// What the daemon at `path` has to promise, and what of it is taken.
pub fn books(path: &Path) -> Result<CapacitySummary, TenantError> {
    let connection = reach(path)?;
    match administer(&connection, &TenantRequest::Capacity)?.0 {
        DaemonEvent::Capacity(books) => Ok(books),
        _ => Err(TenantError::OtherBuild),
    }
}

/// Changes a contract: what is `None` stays. Returns what it is now.
pub fn set(
    path: &Path,
    tenant: TenantNumber,
    frames: Option<FrameSpec>,
    disk: Option<DiskChange>,
) -> Result<TenantInfo, TenantError> {
    let ask = TenantRequest::Set {
        tenant,
        frames,
        disk,
    };
    let changed = ask_for_list(path, &ask)?.pop();
    changed.ok_or(TenantError::OtherBuild)
}

fn ask_for_list(path: &Path, ask: &TenantRequest) -> Result<Vec<TenantInfo>, TenantError> {
    let connection = reach(path)?;
    let mut listed = Vec::new();
    let mut next = administer(&connection, ask)?.0;
    loop {
        match next {
            DaemonEvent::Tenant(one) => listed.push(*one),
            DaemonEvent::End => return Ok(listed),
            _ => return Err(TenantError::OtherBuild),
        }
        next = recv_administered(&connection)?.0;
    }
}
