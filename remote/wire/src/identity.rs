//! Which client or server a process is, where no key says it.

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

#[cfg(test)]
mod tests {
    use super::*;

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
