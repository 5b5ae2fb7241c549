//! The identity of the machine's current boot.

use std::sync::OnceLock;

/// The kernel's boot id, which differs after each boot. Zero where /proc does not show it.
pub fn boot_id() -> u128 {
    static READ: OnceLock<u128> = OnceLock::new();
    match READ.get() {
        Some(id) => *id,
        // A failure is not kept: it may be a passing shortage of descriptors.
        None => read().map_or(0, |id| *READ.get_or_init(|| id)),
    }
}

fn read() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}
