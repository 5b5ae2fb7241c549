//! Queries and administration without a contract: the contracts, what is free, and changes.

use super::TenantError;
use super::connection::{converse, hear, reach};
use protocol::contract_spec::{DiskChange, FrameTerms};
use protocol::{Ask, Books, Listed, Say, TenantNumber};
use std::path::Path;

/// The contracts that the daemon at `path` keeps, as far as the caller may see them.
pub fn list(path: &Path) -> Result<Vec<Listed>, TenantError> {
    ask_for_list(path, &Ask::List)
}

/// What the daemon at `path` has to promise, and what of it is taken.
pub fn books(path: &Path) -> Result<Books, TenantError> {
    let connection = reach(path)?;
    match converse(&connection, &Ask::Books, &[])?.0 {
        Say::Books(books) => Ok(books),
        _ => Err(TenantError::OtherBuild),
    }
}

/// Changes a contract: what is `None` stays. Returns what it is now.
pub fn set(
    path: &Path,
    tenant: TenantNumber,
    frames: Option<FrameTerms>,
    disk: Option<DiskChange>,
) -> Result<Listed, TenantError> {
    let ask = Ask::Set {
        tenant,
        frames,
        disk,
    };
    let changed = ask_for_list(path, &ask)?.pop();
    changed.ok_or(TenantError::OtherBuild)
}

fn ask_for_list(path: &Path, ask: &Ask) -> Result<Vec<Listed>, TenantError> {
    let connection = reach(path)?;
    let mut listed = Vec::new();
    let mut next = converse(&connection, ask, &[])?.0;
    loop {
        match next {
            Say::Tenant(one) => listed.push(one),
            Say::End => return Ok(listed),
            _ => return Err(TenantError::OtherBuild),
        }
        next = hear(&connection)?.0;
    }
}
