//! Which server this process is.

use remote_policy::identity::{HostId, Incarnation};
use remote_wire::control::host_id;
use std::fs;
use std::net::SocketAddr;

/// This process as an incarnation of a host.
pub fn own_incarnation(host: HostId) -> Incarnation {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim().replace('-', "");
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before the fields may have blanks and parentheses of its own.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let start = fields.split_whitespace().nth(START);
    Incarnation {
        host,
        boot: u128::from_str_radix(&boot, 16).unwrap_or_default(),
        start_ticks: start
            .and_then(|ticks| ticks.parse().ok())
            .unwrap_or_default(),
    }
}

/// The field of a process's start, counted from the one after its name.
const START: usize = 19;

/// The id of a server without keys of its own: the same for each life of a server at this address, and another for each
/// server of a machine, in each of its network namespaces.
pub fn server_host(address: SocketAddr) -> HostId {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    host_id(&format!(
        "{} {} {address}",
        read("/etc/machine-id").trim(),
        namespace.display()
    ))
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
        let at = |port| server_host(([127, 0, 0, 1], port).into());
        assert_eq!(at(1), at(1));
        assert_ne!(at(1), at(2));
    }
}
