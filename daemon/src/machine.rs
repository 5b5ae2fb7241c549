//! The memory of this machine.

use frames::allocator::MachineTopology;

/// Bytes of the machine's memory.
pub fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// The particular frames that this machine has.
pub(crate) fn topology() -> MachineTopology {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let nodes = std::fs::read_dir("/sys/devices/system/node").map_or(1, |all| {
        let named = |name: &str| {
            name.strip_prefix("node")
                .is_some_and(|n| n.parse::<u32>().is_ok())
        };
        all.flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(named))
            .count()
    });
    MachineTopology {
        huge: enabled.is_ok_and(|text| !text.contains("[never]")),
        nodes: nodes.max(1) as u32,
    }
}
