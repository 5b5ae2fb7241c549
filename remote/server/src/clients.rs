//! What the server knows of each client host, for people.

use crate::service_times::ServiceTimes;
use remote_keys::Fingerprint;
use remote_policy::identity::{HostId, Incarnation};
use std::collections::BTreeMap;

/// A client, as it named itself.
pub(crate) struct ClientRecord {
    pub client: Incarnation,
    pub name: String,
    /// Its host's key, if its links have keys.
    key: Option<Fingerprint>,
    /// Pages read and written.
    pub pages_moved: u64,
    /// From the arrival of a request to its reply.
    pub times: ServiceTimes,
}

/// All clients that have a connection or a lease.
#[derive(Default)]
pub(crate) struct ClientTable(BTreeMap<HostId, ClientRecord>);

impl ClientTable {
    /// Returns true if the name is that of a client with another key: whatever it has here is not this one's.
    pub fn is_anothers(&self, host: HostId, key: Option<Fingerprint>) -> bool {
        self.0.get(&host).is_some_and(|known| known.key != key)
    }

    /// A client names itself. The name is its own ([`ClientTable::is_anothers`]).
    pub fn on_hello(&mut self, client: Incarnation, name: String, key: Option<Fingerprint>) {
        let record = ClientRecord {
            client,
            name,
            key,
            pages_moved: 0,
            times: ServiceTimes::default(),
        };
        let known = self.0.entry(client.host).or_insert(record);
        known.client = client;
    }

    /// A client.
    pub fn get_mut(&mut self, host: HostId) -> Option<&mut ClientRecord> {
        self.0.get_mut(&host)
    }

    /// Forgets clients that `is_known` does not name.
    pub fn retain(&mut self, is_known: impl Fn(Incarnation) -> bool) {
        self.0.retain(|_, record| is_known(record.client));
    }

    /// All clients.
    pub fn iter(&self) -> impl Iterator<Item = &ClientRecord> {
        self.0.values()
    }
}
