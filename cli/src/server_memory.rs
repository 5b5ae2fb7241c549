//! The memory of `selfpage serve`: what it lends, what stays the machine's, and what it takes beside that.
//!
//! Rule: the kernel ends a server, with all pages, where its control group is full. So what peers can have it take
//! without a permit, by their connections, is counted before the server starts, at its most.

use crate::machine::Memory;
use remote_server::MAX_CONNECTIONS;
use wired::Bytes;

/// The default of `--ram`, of what is available.
const RAM_PART: u64 = 4;
/// The default of `--keep-free`, of the machine's memory.
const KEEP_PART: u64 = 20;
/// What a server takes beside its pages: 10 MiB at rest, and tables of 1.2 % of the pages, as measured.
const AT_REST: u64 = 10 << 20;
const TABLES_PART: u64 = 64;
/// What a connection takes whose buffers are full, as measured.
const CONNECTION: u64 = 800 << 10;
/// The connections that each server has room for.
const LEAST_CONNECTIONS: u64 = 16;

/// The memory of a server.
#[derive(Clone, Copy)]
pub struct ServerMemory {
    /// For pages.
    pub ram: Bytes,
    /// What stays available to the machine.
    pub keep: Bytes,
    /// The control group's limit.
    limit: Option<u64>,
}

impl ServerMemory {
    /// What was asked for, or a part of the machine's.
    ///
    /// # Errors
    /// Where it is more than there is.
    pub fn new(ram: Option<Bytes>, keep: Option<Bytes>, machine: &Memory) -> Result<Self, String> {
        let available = machine.available.min(machine.most());
        let ram = ram.unwrap_or(Bytes(available / RAM_PART));
        check_ram(ram, machine.most())?;
        let keep = keep.unwrap_or(Bytes(machine.total / KEEP_PART));
        if keep.0 >= machine.total {
            return Err(format!(
                "--keep-free {keep} leaves nothing to lend: this machine has {}",
                Bytes(machine.total)
            ));
        }
        let limit = machine.limit;
        Ok(Self { ram, keep, limit })
    }

    /// Most connections of page clients.
    pub fn connections(&self) -> usize {
        let rest = match (self.limit, with_connections(self.ram, LEAST_CONNECTIONS)) {
            (Some(limit), Some(least)) => limit.saturating_sub(least),
            _ => u64::MAX,
        };
        let fit = LEAST_CONNECTIONS + rest / CONNECTION;
        fit.min(MAX_CONNECTIONS as u64) as usize
    }

    /// What the control group's limit costs.
    pub fn note(&self) -> Option<String> {
        let (limit, connections) = (self.limit?, self.connections());
        let all = with_connections(self.ram, MAX_CONNECTIONS as u64)?;
        (connections < MAX_CONNECTIONS).then(|| {
            format!(
                "this control group has {}, where --ram {} leaves room for {connections} connections of {MAX_CONNECTIONS}: give it {} for all",
                Bytes(limit),
                self.ram,
                Bytes(all.next_multiple_of(1 << 20))
            )
        })
    }
}

/// Pages, and what the server takes beside them with so many connections.
fn with_connections(ram: Bytes, connections: u64) -> Option<u64> {
    let beside = AT_REST + ram.0 / TABLES_PART + connections * CONNECTION;
    ram.0.checked_add(beside)
}

/// Refuses pages that leave the server none of `most` bytes for itself.
fn check_ram(ram: Bytes, most: u64) -> Result<(), String> {
    if with_connections(ram, LEAST_CONNECTIONS).is_some_and(|all| all <= most) {
        return Ok(());
    }
    let beside = AT_REST + LEAST_CONNECTIONS * CONNECTION;
    let most_pages = most.saturating_sub(beside) / (TABLES_PART + 1) * TABLES_PART;
    let fits = Bytes(most_pages >> 20 << 20);
    Err(format!(
        "--ram {ram} and the server's own memory are more than this machine or control group has, {}: {fits} fit",
        Bytes(most)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ram_mib: u64, limit_mib: Option<u64>) -> ServerMemory {
        ServerMemory {
            ram: Bytes(ram_mib << 20),
            keep: Bytes(0),
            limit: limit_mib.map(|mib| mib << 20),
        }
    }

    #[test]
    fn a_server_has_memory_of_its_own_beside_its_pages() {
        let most = 64 << 20;
        let why = check_ram(Bytes(most), most).unwrap_err();
        assert!(why.contains("has, 64MiB: 40MiB fit"), "{why}");
        check_ram(Bytes(40 << 20), most).unwrap();
        check_ram(Bytes(u64::MAX), u64::MAX).unwrap_err();
        check_ram(Bytes(4 << 20), 8 << 20).unwrap_err();
    }

    #[test]
    fn a_server_has_as_many_connections_as_its_control_group_has_memory_for() {
        assert_eq!(of(40, None).connections(), MAX_CONNECTIONS);
        assert!(of(40, None).note().is_none());
        for limit in [64, 80, 128, 200, 250, 1024] {
            let server = of(40, Some(limit));
            let connections = server.connections();
            let all = with_connections(server.ram, connections as u64).unwrap();
            assert!(
                all <= limit << 20 && connections >= 16,
                "{limit}: {connections}"
            );
            assert_eq!(server.note().is_some(), connections < MAX_CONNECTIONS);
        }
        let note = of(40, Some(64)).note().unwrap();
        assert!(
            note.contains("has 64MiB") && note.contains("251MiB"),
            "{note}"
        );
        assert_eq!(of(40, Some(251)).connections(), MAX_CONNECTIONS);
    }
}
