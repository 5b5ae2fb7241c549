//! The values that a configuration may have, and where in its text an invalid one stands.

use super::{Config, InvalidValue};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

impl Config {
    /// The first invalid value of `faults`.
    fn first_invalid_of_faults(&self) -> Option<InvalidValue> {
        let faults = self.faults;
        if rate::Utilization::new(faults.cpu_share).is_none() {
            let why = format!(
                "faults.cpu_share is {}: the part of the processors for reservations and faults is above 0 and at most 1.0",
                faults.cpu_share
            );
            return Some(("faults.cpu_share".into(), why));
        }
        let unit = Duration::from_nanos(100)..=Duration::from_millis(10);
        if !unit.contains(&faults.initial_cost.0) {
            let why = format!(
                "faults.initial_cost is {}: the processor time of a fault is between 100ns and 10ms",
                faults.initial_cost
            );
            return Some(("faults.initial_cost".into(), why));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let there = faults.period.0.mul_f64(faults.cpu_share) * processors as u32;
        let floor = faults.initial_cost.0 * rate::reservations::FAULT_FLOOR;
        if floor > there {
            let why = format!(
                "faults: each program is promised {} faults in a period, which at {} each take {floor:?}, and {} of {processors} \
                 processors are {there:?} of each {}: give a longer period, a smaller initial_cost or more of the processors",
                rate::reservations::FAULT_FLOOR,
                faults.initial_cost,
                faults.cpu_share,
                faults.period
            );
            return Some(("faults.initial_cost".into(), why));
        }
        None
    }

    /// The first invalid value.
    pub(super) fn first_invalid(&self) -> Option<InvalidValue> {
        let Self { memory, disk, .. } = self;
        let paths = [("socket", &self.socket), ("disk.swap", &disk.swap)];
        let figures = disk
            .calibration
            .iter()
            .map(|path| ("disk.calibration", path));
        for (name, path) in paths.into_iter().chain(figures) {
            if !path.is_absolute() {
                let why = format!("{name} is {}: write the whole path, from /", path.display());
                return Some((name.into(), why));
            }
        }
        if !(0.01..=1.0).contains(&disk.capacity) {
            let asked = disk.capacity;
            let why = format!(
                "disk.capacity is {asked}: the share of the disk's time to promise is between 0.01 and 1.0"
            );
            return Some(("disk.capacity".into(), why));
        }
        if disk.depth == Some(0) {
            let why = "disk.depth is 0: at least one request at a time must be possible";
            return Some(("disk.depth".into(), why.into()));
        }
        let faults = self.faults;
        let limits = [
            ("faults.period", faults.period, 1, 10_000),
            (
                "memory.revocation_deadline",
                memory.revocation_deadline,
                1,
                60_000,
            ),
            (
                "memory.reduction_notice",
                memory.reduction_notice,
                0,
                3_600_000,
            ),
            ("memory.restart_grace", memory.restart_grace, 0, 600_000),
        ];
        for (name, asked, least, most) in limits {
            let range = Duration::from_millis(least)..=Duration::from_millis(most);
            if !range.contains(&asked.0) {
                let why = format!("{name} is {asked}: it can be from {least}ms to {most}ms");
                return Some((name.into(), why));
            }
        }
        if let Some(asked) = memory.frames
            && asked.0 < 1 << 20
        {
            let why = format!("memory.frames is {asked}: less than the 1MiB of one small contract");
            return Some(("memory.frames".into(), why));
        }
        if let Some(found) = self.first_invalid_of_faults() {
            return Some(found);
        }
        self.allow.iter().enumerate().find_map(|(at, rule)| {
            let why = format!("rule {} of allow: {}", at + 1, rule.first_invalid()?);
            Some((format!("allow.{at}"), why))
        })
    }
}

/// A message of the TOML parser, with the expected form.
pub(super) fn with_form(message: &str) -> String {
    let form = match message {
        _ if message.contains("expected a sequence") => {
            "a rule begins with two brackets on each side: [[allow]]"
        }
        _ if message.contains("expected a string") => {
            "a size or a time is in quotes, with its unit: \"64M\", \"50us\""
        }
        _ if message.contains("missing field `disk`") => {
            "[disk] with swap = \"/FOLDER/FILE\" is the one part that has no default"
        }
        _ if message.contains("expected u32") => {
            "a whole number; of a user, as `id -u NAME` prints it"
        }
        _ => return message.to_owned(),
    };
    format!("{message}; {form}")
}

/// Where in the text the value of `key` begins, which is `table.key` or `table.number`.
pub(super) fn place(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut parts = key.split('.');
    let mut value = table.get_ref().get(parts.next()?)?;
    for part in parts {
        value = match value.get_ref() {
            DeValue::Table(table) => table.get(part)?,
            DeValue::Array(all) => all.get(part.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(value.span().start)
}
