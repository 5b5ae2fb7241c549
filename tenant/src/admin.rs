//! Queries and administration without a contract: the contracts, what is free, and changes.

use super::TenantError;
use super::connection::{connect, exchange_as_admin, recv_as_admin};
use protocol::contract_spec::{DiskChange, FrameSpec};
use protocol::{CapacitySummary, DaemonEvent, TenantInfo, TenantNumber, TenantRequest};
use std::path::Path;

/// The contracts that the daemon at `path` keeps, as far as the caller may see them.
pub fn list(path: &Path) -> Result<Vec<TenantInfo>, TenantError> {
    request_list(path, &TenantRequest::List)
}

/// The resources that the daemon at `path` can promise, and how much of each it has promised.
pub fn capacity(path: &Path) -> Result<CapacitySummary, TenantError> {
    let connection = connect(path)?;
    match exchange_as_admin(&connection, &TenantRequest::Capacity)?.0 {
        DaemonEvent::Capacity(summary) => Ok(summary),
        _ => Err(TenantError::OtherBuild),
    }
}

/// Changes a contract; a part that is `None` stays as it is. Returns the tenant as it is now.
pub fn set(
    path: &Path,
    tenant: TenantNumber,
    frames: Option<FrameSpec>,
    disk: Option<DiskChange>,
) -> Result<TenantInfo, TenantError> {
    let change = TenantRequest::Set {
        tenant,
        frames,
        disk,
    };
    let changed = request_list(path, &change)?.pop();
    changed.ok_or(TenantError::OtherBuild)
}

fn request_list(path: &Path, query: &TenantRequest) -> Result<Vec<TenantInfo>, TenantError> {
    let connection = connect(path)?;
    let mut listed = Vec::new();
    let mut next = exchange_as_admin(&connection, query)?.0;
    loop {
        match next {
            DaemonEvent::Tenant(info) => listed.push(*info),
            DaemonEvent::End => return Ok(listed),
            _ => return Err(TenantError::OtherBuild),
        }
        next = recv_as_admin(&connection)?.0;
    }
}
