//! How many connections peers of one address have.

use remote_wire::network_of;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections by address, of which each has `most`.
pub struct AddressLimit {
    most: usize,
    open: Mutex<BTreeMap<IpAddr, usize>>,
}

/// The place of one connection, which ends with this.
pub struct AddressPlace {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

impl AddressLimit {
    /// No connections.
    pub fn new(most: usize) -> Arc<Self> {
        let open = Mutex::default();
        Arc::new(Self { most, open })
    }

    /// Takes a place; `None` where peers of the address have all of theirs.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        let address = network_of(address);
        // Nothing panics while it is held.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = open.entry(address).or_default();
        if *taken >= self.most {
            return None;
        }
        *taken += 1;
        let limit = Arc::clone(self);
        Some(AddressPlace { limit, address })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let open = &self.limit.open;
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = open.get_mut(&self.address) {
            *taken -= 1;
            if *taken == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_places_and_takes_none_of_others() {
        let limit = AddressLimit::new(2);
        let take = |address: &str| limit.take(address.parse().unwrap());
        let first = take("10.0.0.1");
        let second = take("::ffff:10.0.0.1");
        assert!(first.is_some() && second.is_some());
        assert!(take("10.0.0.1").is_none());
        assert!(take("10.0.0.2").is_some());
        drop(first);
        assert!(take("10.0.0.1").is_some());
        let of_network = [take("fd00::1"), take("fd00::2"), take("fd00::3")];
        assert!(of_network[1].is_some() && of_network[2].is_none());
    }

    #[test]
    fn an_address_without_connections_takes_no_memory() {
        let limit = AddressLimit::new(2);
        drop(limit.take("10.0.0.1".parse().unwrap()));
        assert!(limit.open.lock().unwrap().is_empty());
    }
}
