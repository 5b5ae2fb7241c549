//! Which run of the machine this is.

/// The kernel's boot id: another after each boot. Zero where /proc does not say it.
pub fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or_default()
}
