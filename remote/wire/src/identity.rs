//! Which client or server a process is.
//!
//! Rule: an id says whose it is. Half of it is the head of its host's key, so no member of a cluster acts in the name of
//! another at a broker. To have an id of another key takes a member whose key has the same head. In the clear a peer may
//! have any id.

use remote_keys::Fingerprint;
use remote_policy::identity::{HostId, Incarnation};
use std::fs;
use twox_hash::XxHash3_64;

/// This process as an incarnation of a host.
pub fn own_incarnation(host: HostId) -> Incarnation {
    let process = host::process_tree::process(rustix::process::getpid());
    Incarnation {
        host,
        boot: host::boot::boot_id(),
        start_ticks: process.start,
    }
}

/// The id of what is `named` so on this machine, in this network namespace: the same for each life of
/// it until the machine boots again. Machines of one image have one machine-id, and the numbers of the first namespaces are
/// those of the kernel: what tells them apart is the boot.
pub fn host_id(named: &str) -> HostId {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let boot = host::boot::boot_id();
    let text = format!("{} {boot} {} {named}", machine.trim(), namespace.display());
    HostId(XxHash3_64::oneshot(text.as_bytes()))
}

/// An id as that of a key, where there is one.
pub fn id_of_key(id: HostId, key: Option<Fingerprint>) -> HostId {
    let low = id.0 & u64::from(u32::MAX);
    key.map_or(id, |key| HostId(u64::from(key.head()) << 32 | low))
}

/// Returns true if an id is that of a peer with this key.
pub fn is_id_of_key(id: HostId, key: Option<Fingerprint>) -> bool {
    id == id_of_key(id, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_its_key() {
        let [own, other] = [1, 2].map(|seed| Some(Fingerprint::of(&[seed; 44])));
        let id = id_of_key(HostId(7), own);
        assert!(is_id_of_key(id, own) && is_id_of_key(id, None));
        assert!(!is_id_of_key(id, other) && !is_id_of_key(HostId(7), own));
        assert_ne!(id, id_of_key(HostId(8), own));
    }

    #[test]
    fn a_process_is_one_incarnation() {
        let this = own_incarnation(HostId(1));
        assert_eq!(this, own_incarnation(HostId(1)));
        assert!(this.boot != 0 && this.start_ticks != 0, "{this}");
    }

    #[test]
    fn servers_at_different_addresses_are_different_hosts() {
        assert_eq!(host_id("127.0.0.1:1"), host_id("127.0.0.1:1"));
        assert_ne!(host_id("127.0.0.1:1"), host_id("127.0.0.1:2"));
    }
}
