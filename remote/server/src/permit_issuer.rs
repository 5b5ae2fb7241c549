//! The one owner of a server's capacity: issues, seals and ends permits, and schedules by them.
//!
//! *Adaptive Remote Paging for Mobile Computers*, sections 3.3.1 and 3.5: a permit is a capability
//! that its server issues. Rule: permits, their seals and their places in the schedule change here
//! and nowhere else, so that a permit that is void is void for all three.

use disk::atropos::{Atropos, ClientId, DiskContract, TransactionDesc, Utilization};
use disk::time::{Nanos, Time};
use remote_policy::capacity::{
    AllocateError, CapacityAction, CapacityConfig, PermitRequest, ServerCapacity,
};
use remote_policy::identity::{Epoch, Incarnation, RequestId};
use remote_policy::permit::{Permit, PermitId};
use remote_wire::control::SealedPermit;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// Most permits of one server: each has a place in the schedule.
pub const MAX_PERMITS: usize = 4096;

/// Most permits of one client: a client enlarges what it has.
pub const MAX_PERMITS_OF_CLIENT: usize = 64;

/// The period of the time that no permit has.
const UNLENT_PERIOD: Nanos = Nanos::millis(20);

/// The longest time between two turns of a server that has a processor: twice the longest sleep. A server that was stopped reads
/// what its clients have sent meanwhile in the turns that follow, from new connections in the later ones.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// Modelled cost in flight at once. Requests for pages in RAM are served one by one; this bounds
/// those that wait for the disk.
const BOUND: Nanos = Nanos::millis(2);

/// Issues the permits of one server.
pub struct PermitIssuer {
    capacity: ServerCapacity,
    /// Made anew by each incarnation of the server, so that permits of an earlier one are void.
    key: [u8; blake3::KEY_LEN],
    permits: BTreeMap<PermitId, IssuedPermit>,
    pub(crate) schedule: Atropos<()>,
    /// Has the time that is not lent, for requests that no permit pays for.
    unlent: ClientId,
    /// What the capacity demanded and the server has not yet done.
    actions: Vec<CapacityAction>,
    /// Number of the last reallocation that a client requested of the server itself.
    reallocations: u64,
    now: Duration,
}

/// A permit in force.
#[derive(Clone, Copy, Debug)]
struct IssuedPermit {
    permit: Permit,
    scheduled: ClientId,
}

impl PermitIssuer {
    /// An issuer for `owned_pages` of the server, which is its host's own broker at first.
    pub fn new(config: CapacityConfig, server: Incarnation, owned_pages: u64) -> io::Result<Self> {
        let mut key = [0; blake3::KEY_LEN];
        let filled = getrandom(&mut key[..], GetRandomFlags::empty())?;
        if filled != key.len() {
            return Err(io::Error::other(
                "the kernel gave too few random bytes for a key",
            ));
        }
        let mut schedule = Atropos::new(Utilization::WHOLE, BOUND, ());
        let slice = (Utilization::WHOLE - config.lendable_time).in_period(UNLENT_PERIOD);
        // Most permits live on slack, which is theirs.
        let unlent = schedule.admit(Time(0), DiskContract::new(slice, UNLENT_PERIOD));
        Ok(Self {
            capacity: ServerCapacity::new(config, server, owned_pages),
            key,
            permits: BTreeMap::new(),
            schedule,
            unlent: unlent.map_err(io::Error::other)?,
            actions: Vec::new(),
            reallocations: 0,
            now: Duration::ZERO,
        })
    }

    /// The capacity, to look at.
    pub fn capacity(&self) -> &ServerCapacity {
        &self.capacity
    }

    /// The capacity, for claims and reports of a broker, and for pages written. Permits are issued, rewritten
    /// and released by the issuer's own methods.
    pub fn capacity_mut(&mut self) -> &mut ServerCapacity {
        &mut self.capacity
    }

    /// The present, since the server began.
    pub fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        let lost = now.saturating_sub(self.now).saturating_sub(LONGEST_TURN);
        if !lost.is_zero() {
            self.capacity.put_off(lost);
        }
        self.now = now;
    }

    /// Renews the lease of a client.
    ///
    /// # Errors
    /// Where a later incarnation of the client is known.
    pub fn on_contact(&mut self, client: Incarnation) -> Result<(), AllocateError> {
        let actions = self.capacity.on_contact(client, self.now)?;
        self.actions.extend(actions);
        Ok(())
    }

    /// The same by a broker's word, which ends no lease of another incarnation.
    ///
    /// # Errors
    /// Where another incarnation of the client has a lease.
    pub fn on_broker_contact(&mut self, client: Incarnation) -> Result<(), AllocateError> {
        self.capacity.on_broker_contact(client, self.now)
    }

    /// Issues a permit for the broker of `epoch`, to a client in contact.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn allocate(
        &mut self,
        epoch: Epoch,
        request: &PermitRequest,
    ) -> Result<SealedPermit, AllocateError> {
        let permit = self.capacity.allocate(epoch, request)?;
        match self.permits.get_mut(&permit.id) {
            Some(issued) => issued.permit = permit,
            None => {
                let scheduled = self.schedule_new(&permit).inspect_err(|_| {
                    self.capacity.release(permit.id);
                })?;
                let issued = IssuedPermit { permit, scheduled };
                self.permits.insert(permit.id, issued);
            }
        }
        Ok(self.seal(permit))
    }

    fn schedule_new(&mut self, permit: &Permit) -> Result<ClientId, AllocateError> {
        let clients = self.permits.values();
        let own = clients.filter(|issued| issued.permit.client == permit.client);
        if own.count() >= MAX_PERMITS_OF_CLIENT {
            let most = MAX_PERMITS_OF_CLIENT;
            return Err(AllocateError::Permits { most });
        }
        if self.permits.len() >= MAX_PERMITS {
            return Err(AllocateError::Permits { most: MAX_PERMITS });
        }
        let now = Time(self.now.as_nanos() as u64);
        Ok(self.schedule.admit(now, permit.qos)?)
    }

    /// Rewrites a permit to `pages`, for the broker of `epoch`.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn reallocate(
        &mut self,
        epoch: Epoch,
        request: RequestId,
        id: PermitId,
        pages: u64,
    ) -> Result<SealedPermit, AllocateError> {
        let permit = self.capacity.reallocate(epoch, request, id, pages)?;
        if let Some(issued) = self.permits.get_mut(&id) {
            issued.permit = permit;
        }
        Ok(self.seal(permit))
    }

    /// A number above those of earlier reallocations.
    pub(crate) fn next_reallocation(&mut self) -> u64 {
        self.reallocations += 1;
        self.reallocations
    }

    /// Voids a permit that its client releases.
    pub fn release(&mut self, id: PermitId) {
        let action = self.capacity.release(id);
        self.actions.extend(action);
    }

    /// Sets what the host can spare.
    pub fn on_usage(&mut self, owned_pages: u64) {
        let actions = self.capacity.on_usage(owned_pages, 0, self.now);
        self.actions.extend(actions);
    }

    /// Ends leases and missed deadlines.
    pub fn on_timer(&mut self) {
        let actions = self.capacity.on_timer(self.now);
        self.actions.extend(actions);
    }

    /// Demands once more what the pending revocations of permits demand.
    pub(crate) fn repeat_revocations(&mut self, permits: &BTreeSet<PermitId>) {
        let pending = |id: &PermitId| self.capacity.pending_revocation(*id);
        self.actions.extend(permits.iter().filter_map(pending));
    }

    /// A permit in force.
    pub fn permit(&self, id: PermitId) -> Option<Permit> {
        self.permits.get(&id).map(|issued| issued.permit)
    }

    /// The permits in force.
    pub fn permits(&self) -> impl Iterator<Item = Permit> + '_ {
        self.permits.values().map(|issued| issued.permit)
    }

    /// How many permits are in force.
    pub(crate) fn count(&self) -> usize {
        self.permits.len()
    }

    /// A permit's place in the schedule.
    pub(crate) fn scheduled(&self, id: PermitId) -> Option<ClientId> {
        self.permits.get(&id).map(|issued| issued.scheduled)
    }

    /// Whose turn a control request has: of a permit with a slice that was presented, else of the
    /// time that is not lent, so that a permit that lives on slack keeps its lease.
    pub(crate) fn scheduled_control(&self, presented: &BTreeSet<PermitId>) -> ClientId {
        let issued = presented.iter().filter_map(|id| self.permits.get(id));
        let mut paying = issued.filter(|issued| issued.permit.qos.slice > Nanos::ZERO);
        paying.next().map_or(self.unlent, |issued| issued.scheduled)
    }

    /// The next thing that the capacity demands of the server.
    pub(crate) fn next_action(&mut self) -> Option<CapacityAction> {
        match self.actions.is_empty() {
            true => None,
            false => Some(self.actions.remove(0)),
        }
    }

    /// Keeps a permit as its capacity rewrote it.
    pub(crate) fn on_rewritten(&mut self, permit: Permit) -> SealedPermit {
        if let Some(issued) = self.permits.get_mut(&permit.id) {
            issued.permit = permit;
        }
        self.seal(permit)
    }

    /// Removes a void permit. Returns its requests that were scheduled and not served.
    pub(crate) fn on_destroyed(&mut self, id: PermitId, now: Time) -> Vec<TransactionDesc> {
        match self.permits.remove(&id) {
            Some(issued) => self.schedule.remove(now, issued.scheduled),
            None => Vec::new(),
        }
    }

    /// Seals a permit.
    pub fn seal(&self, permit: Permit) -> SealedPermit {
        SealedPermit {
            permit,
            mac: *self.mac(&permit).as_bytes(),
        }
    }

    /// Returns true if this incarnation of the server issued the permit, now or before it was rewritten.
    pub fn is_sealed(&self, sealed: &SealedPermit) -> bool {
        // The comparison of hashes takes the same time wherever they differ.
        self.mac(&sealed.permit) == blake3::Hash::from_bytes(sealed.mac)
    }

    fn mac(&self, permit: &Permit) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // A permit serializes into memory: nothing of it can fail but the writer, which does not.
        let _ = postcard::to_io(permit, &mut hasher);
        hasher.finalize()
    }
}
