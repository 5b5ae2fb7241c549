//! How permits end: by their clients' releases, restarts and silence, and by the revocations of a server that runs low
//! on free pages.
//!
//! From *Adaptive Remote Paging for Mobile Computers*, sections 2.3 and 3.3.2; the deadline is
//! Self-Paging's (section 6.2). Rule: the cheapest way first. Pages granted and never written cost
//! nothing; an abdicate request costs a migration and may be ignored; a revocation may not, and a
//! permit whose client misses its deadline is void. From section 3.5: a permit lasts while its client uses it. One whose
//! answer never arrived, since the broker or the client had passed the server over by then, is one that its client does
//! not present, whatever else the client asks of the server: it ends after the term of a lease.

use super::{AllocateError, CapacityAction, EndOfPermit, Grant, PendingRevocation, ServerCapacity};
use crate::identity::{Incarnation, ObjectId};
use crate::lease::Renewal;
use crate::lru_size::{self, ObjectUse};
use crate::permit::PermitId;
use std::cmp::Reverse;
use std::collections::BTreeMap;
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

    /// The same by a broker's word: it begins and renews leases, and replaces none.
    ///
    /// # Errors
    /// [`AllocateError::Leased`] where another incarnation of the client has a lease.
    pub fn on_broker_contact(
        &mut self,
        client: Incarnation,
        now: Duration,
    ) -> Result<(), AllocateError> {
        match self.leases.holder(client.host) {
            Some(holder) if holder != client => Err(AllocateError::Leased { client, holder }),
            _ => {
                self.leases.renew(client, now);
                Ok(())
            }
        }
    }

    /// Voids a permit that its client releases. A permit that is void already stays so.
    pub fn release(&mut self, id: PermitId) -> Option<CapacityAction> {
        self.destroy(id, EndOfPermit::Released)
    }

    /// The server had no processor for some time: of what clients have sent meanwhile it knows nothing.
    pub fn put_off(&mut self, by: Duration) {
        self.leases.put_off(by);
        for grant in self.grants.values_mut() {
            let revocation = grant.revocation.as_mut().map(|pending| &mut pending.by);
            for deadline in grant.present_by.as_mut().into_iter().chain(revocation) {
                *deadline = deadline.saturating_add(by);
            }
        }
    }

    /// The client of a permit presents it.
    pub fn on_presented(&mut self, id: PermitId) {
        if let Some(grant) = self.grants.get_mut(&id) {
            grant.present_by = None;
        }
    }

    /// Ends leases, and permits that were not presented in time.
    fn expire(&mut self, now: Duration) -> Vec<CapacityAction> {
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

    fn destroy(&mut self, id: PermitId, cause: EndOfPermit) -> Option<CapacityAction> {
        let Grant {
            permit, objects, ..
        } = self.grants.remove(&id)?;
        for object in &objects {
            self.objects.remove(object);
        }
        self.serial += 1;
        Some(CapacityAction::Destroy {
            permit,
            objects,
            cause,
        })
    }

    fn destroy_all_of(&mut self, client: Incarnation, cause: EndOfPermit) -> Vec<CapacityAction> {
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

    /// Sets what the host can spare and what its own processes use of it, as measured.
    pub fn on_usage(
        &mut self,
        owned_pages: u64,
        local_pages: u64,
        now: Duration,
    ) -> Vec<CapacityAction> {
        self.owned_pages = owned_pages;
        self.local_pages = local_pages;
        self.serial += 1;
        self.on_timer(now)
    }

    /// Ends leases, permits that were not presented and missed deadlines, and revokes while too few pages are free.
    pub fn on_timer(&mut self, now: Duration) -> Vec<CapacityAction> {
        let mut actions = self.expire(now);
        self.end_met_demands();
        actions.extend(self.take_unwritten());
        if self.short_pages() > 0 {
            actions.extend(self.end_missed_deadlines(now));
        }
        if self.short_pages() == 0 {
            self.withdraw_revocations();
            return actions;
        }
        actions.extend(self.request_abdication(now));
        actions.extend(self.revoke(now));
        actions
    }

    /// When to call [`ServerCapacity::on_timer`] next, if nothing happens before.
    pub fn next_timer(&self, now: Duration) -> Option<Duration> {
        let deadlines = self.grants.values().filter_map(|grant| grant.revocation);
        let requests = self
            .objects
            .values()
            .filter_map(|stored| stored.abdicate_requested);
        deadlines
            .map(|pending| pending.by)
            .chain(requests.map(|at| at + self.config.notice))
            .chain(self.grants.values().filter_map(|grant| grant.present_by))
            .filter(|at| *at > now)
            .chain(self.leases.next_expiry())
            .min()
    }

    /// Pages missing for the host's own processes and the threshold beside them.
    pub fn short_pages(&self) -> u64 {
        let needed = self.local_pages + self.granted_pages() + self.config.revoke_below_pages;
        needed.saturating_sub(self.owned_pages)
    }

    /// The revocation that the client of a permit has not complied with yet.
    pub fn pending_revocation(&self, permit: PermitId) -> Option<CapacityAction> {
        let PendingRevocation { keep_pages, by } = self.grants.get(&permit)?.revocation?;
        Some(CapacityAction::Revoke {
            permit,
            keep_pages,
            by,
        })
    }

    /// A permit whose client has complied can be revoked again.
    fn end_met_demands(&mut self) {
        for grant in self.grants.values_mut() {
            let written_pages = grant.written_pages;
            grant.revocation = grant
                .revocation
                .filter(|pending| written_pages > pending.keep_pages);
        }
    }

    fn end_missed_deadlines(&mut self, now: Duration) -> Vec<CapacityAction> {
        let is_missed = |grant: &&Grant| {
            let missed = |pending: PendingRevocation| {
                pending.by <= now && grant.written_pages > pending.keep_pages
            };
            grant.revocation.is_some_and(missed)
        };
        let missed: Vec<_> = self
            .grants
            .values()
            .filter(is_missed)
            .map(|grant| grant.permit.id)
            .collect();
        let destroy = |id| self.destroy(id, EndOfPermit::Revoked);
        missed.into_iter().filter_map(destroy).collect()
    }

    /// Rewrites permits without pages that were never written, those with most of them first.
    fn take_unwritten(&mut self) -> Vec<CapacityAction> {
        let unwritten = |grant: &Grant| {
            grant
                .permit
                .granted_pages
                .saturating_sub(grant.written_pages)
        };
        let mut short = self.short_pages();
        let mut grants: Vec<_> = self.grants.values_mut().collect();
        grants.sort_by_key(|grant| (Reverse(unwritten(grant)), grant.permit.id));
        let mut actions = Vec::new();
        for grant in grants {
            let taken = unwritten(grant).min(short);
            if taken == 0 {
                break;
            }
            grant.permit.granted_pages -= taken;
            short -= taken;
            actions.push(CapacityAction::SendRewritten(grant.permit));
        }
        self.serial += u64::from(!actions.is_empty());
        actions
    }

    /// Requests as many objects away as free the missing pages. Those that were requested and
    /// still have their notice count as on their way.
    fn request_abdication(&mut self, now: Duration) -> Vec<CapacityAction> {
        let (asked, fresh): (Vec<_>, Vec<_>) = self.usage_by_request();
        let leaving: u64 = asked.iter().map(|one: &ObjectUse| one.size_pages).sum();
        let goal_pages = self.short_pages().saturating_sub(leaving);
        let selected = lru_size::select(fresh, goal_pages);
        let request = |one: ObjectUse| {
            let stored = self.objects.get_mut(&one.object)?;
            stored.abdicate_requested = Some(now);
            let client = self.grants.get(&stored.permit)?.permit.client;
            let object = one.object;
            Some(CapacityAction::RequestAbdicate { client, object })
        };
        selected.into_iter().filter_map(request).collect()
    }

    /// Objects that were requested away, and the others.
    fn usage_by_request(&self) -> (Vec<ObjectUse>, Vec<ObjectUse>) {
        let (asked, fresh): (Vec<_>, Vec<_>) = self
            .objects
            .iter()
            .partition(|(_, stored)| stored.abdicate_requested.is_some());
        let usage = |(object, stored): (&ObjectId, &super::StoredObject)| stored.usage(*object);
        (
            asked.into_iter().map(usage).collect(),
            fresh.into_iter().map(usage).collect(),
        )
    }

    /// Revokes the pages of objects whose organizers had their notice and kept them here.
    fn revoke(&mut self, now: Duration) -> Vec<CapacityAction> {
        let due: u64 = self.revoked_pages();
        let goal_pages = self.short_pages().saturating_sub(due);
        let ignored = self.objects.iter().filter(|(_, stored)| {
            let had_notice = |at: Duration| at + self.config.notice <= now;
            stored.abdicate_requested.is_some_and(had_notice) && !self.is_revoked(stored.permit)
        });
        let usage: Vec<_> = ignored
            .map(|(object, stored)| stored.usage(*object))
            .collect();
        let mut take: BTreeMap<PermitId, u64> = BTreeMap::new();
        for one in lru_size::select(usage, goal_pages) {
            if let Some(stored) = self.objects.get(&one.object) {
                *take.entry(stored.permit).or_default() += one.size_pages;
            }
        }
        let by = now.saturating_add(self.config.deadline);
        let demand = |(permit, pages): (PermitId, u64)| {
            let grant = self.grants.get_mut(&permit)?;
            let keep_pages = grant.written_pages.saturating_sub(pages);
            grant.revocation = Some(PendingRevocation { keep_pages, by });
            Some(CapacityAction::Revoke {
                permit,
                keep_pages,
                by,
            })
        };
        take.into_iter().filter_map(demand).collect()
    }

    /// Pages that revocations have demanded and that are still written.
    fn revoked_pages(&self) -> u64 {
        let due = |grant: &Grant| {
            let pending = grant.revocation?;
            Some(grant.written_pages.saturating_sub(pending.keep_pages))
        };
        self.grants.values().filter_map(due).sum()
    }

    fn is_revoked(&self, permit: PermitId) -> bool {
        self.grants
            .get(&permit)
            .is_some_and(|grant| grant.revocation.is_some())
    }

    /// Enough is free again: nothing is demanded any more.
    fn withdraw_revocations(&mut self) {
        for grant in self.grants.values_mut() {
            grant.revocation = None;
        }
        for stored in self.objects.values_mut() {
            stored.abdicate_requested = None;
        }
    }
}
