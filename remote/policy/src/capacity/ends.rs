//! How permits end: by their clients' releases, restarts and silence.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, section 3.5. Rule: a permit lasts while its client uses it. One
//! whose answer never arrived, since the broker or the client had passed the server over by then, is one that its client
//! does not present, whatever else the client asks of the server: it ends after the term of a lease.

use super::{AllocateError, CapacityAction, EndOfPermit, Grant, ServerCapacity};
use crate::identity::Incarnation;
use crate::lease::Renewal;
use crate::permit::PermitId;
use std::time::Duration;

impl ServerCapacity {
    /// Renews the lease of a request's sender. A new incarnation voids the permits of the earlier
    /// one.
    ///
    /// # Errors
    /// [`AllocateError::Ended`] for a late request of an earlier incarnation.
    pub fn on_contact(
        &mut self,
        client: Incarnation,
        now: Duration,
    ) -> Result<Vec<CapacityAction>, AllocateError> {
        match self.leases.renew(client, now) {
            Renewal::Renewed => Ok(Vec::new()),
            Renewal::Replaced { ended } => Ok(self.destroy_all_of(ended, EndOfPermit::Restarted)),
            Renewal::Ended => Err(AllocateError::Ended(client)),
        }
    }

    /// Voids a permit that its client releases. A permit that is void already stays so.
    pub fn release(&mut self, id: PermitId) -> Option<CapacityAction> {
        self.destroy(id, EndOfPermit::Released)
    }

    /// The client of a permit presents it.
    pub fn on_presented(&mut self, id: PermitId) {
        if let Some(grant) = self.grants.get_mut(&id) {
            grant.present_by = None;
        }
    }

    /// Ends leases, and permits that were not presented in time.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<CapacityAction> {
        let mut actions = Vec::new();
        for client in self.leases.expire(now) {
            actions.extend(self.destroy_all_of(client, EndOfPermit::Expired));
        }
        let is_late = |grant: &&Grant| grant.present_by.is_some_and(|by| by <= now);
        let late = self.grants.values().filter(is_late);
        let late: Vec<_> = late.map(|grant| grant.permit.id).collect();
        let ended = late
            .into_iter()
            .filter_map(|id| self.destroy(id, EndOfPermit::Expired));
        actions.extend(ended);
        actions
    }

    pub(super) fn destroy(&mut self, id: PermitId, cause: EndOfPermit) -> Option<CapacityAction> {
        let grant = self.grants.remove(&id)?;
        self.objects.retain(|_, stored| stored.permit != id);
        self.serial += 1;
        let permit = grant.permit;
        Some(CapacityAction::Destroy { permit, cause })
    }

    pub(super) fn destroy_all_of(
        &mut self,
        client: Incarnation,
        cause: EndOfPermit,
    ) -> Vec<CapacityAction> {
        let held = |grant: &&Grant| grant.permit.client == client;
        let ids: Vec<_> = self
            .grants
            .values()
            .filter(held)
            .map(|grant| grant.permit.id)
            .collect();
        ids.into_iter()
            .filter_map(|id| self.destroy(id, cause))
            .collect()
    }
}
