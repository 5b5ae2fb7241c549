//! The daemon's configuration: a TOML file, checked whole before any of it is used.
//!
//! Everything has a default but the swap file, whose disk space the operator has to choose.
//! [`Config::differs`] decides what a running daemon can take over from a file that has changed;
//! the rest needs a restart, which tenants survive.

mod check;
mod error;

use crate::policy::Rule;
use check::{place, with_form};
use disk::swapfs::UNIT;
pub use error::ConfigError;
use protocol::SOCKET;
use protocol::contract_spec::{ContractSpec, DiskSpec, FrameSpec, LAXITY, from_text};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wired::{Bytes, Time};

/// An invalid value: its place, as `table.key` or `table.number`, and the reason.
type InvalidValue = (String, String);

/// The configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The control socket.
    #[serde(default = "socket")]
    pub socket: PathBuf,
    /// Frames.
    #[serde(default)]
    pub memory: Memory,
    /// The disk that pages go to.
    pub disk: Disk,
    /// How fast page faults may come.
    #[serde(default)]
    pub faults: Faults,
    /// Defaults for requests that name no terms.
    #[serde(default)]
    pub default: Defaults,
    /// Rules of access, with their bounds. Without rules only root and the daemon's own user have access.
    #[serde(default)]
    pub allow: Vec<Rule>,
}

/// Frames.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Memory for all contracts together; half of the machine's where `None`.
    pub frames: Option<Bytes>,
    /// How long a tenant has to complete a revocation.
    pub revocation_deadline: Time,
    /// How long a lowered guarantee still holds.
    pub reduction_notice: Time,
    /// How long a restarted daemon waits for the tenants of the former one.
    pub restart_grace: Time,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            frames: None,
            // Nemesis's example (6.2).
            revocation_deadline: Time(Duration::from_millis(100)),
            // "On the order of tens of seconds" (6.2).
            reduction_notice: Time(Duration::from_secs(30)),
            restart_grace: Time(Duration::from_secs(5)),
        }
    }
}

/// The disk, and the part of it that the daemon manages.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// A partition, or a file, which the daemon makes and keeps.
    pub swap: PathBuf,
    /// Bytes to use; all of a partition where `None`.
    pub size: Option<Bytes>,
    /// Share of the disk's time that may be promised.
    #[serde(default = "capacity")]
    pub capacity: f64,
    /// Requests in flight at a time: 1 in the paper. Where `None`, as many as calibration finds
    /// useful.
    pub depth: Option<u32>,
    /// How long the disk's thread polls for work before it sleeps, at least; 0 if it never
    /// polls. While the thread is awake, a client that waits for one page polls for that, too.
    #[serde(default = "poll_time")]
    pub poll_time: Time,
    /// True if a slice comes with processor time: on a busy machine the threads that page run
    /// before all other work for as long as the slice.
    #[serde(default = "processor_time")]
    pub processor_time: bool,
    /// The file in which the calibration of the device is saved.
    pub calibration: Option<PathBuf>,
}

/// The rate of page faults: the processor time beside reservations, shared out among the
/// tenants that request a share.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// The part of the processors that reservations and faults may use together.
    pub cpu_share: f64,
    /// system.fault_period.
    pub period: Time,
    /// The assumed cost of a fault until tenants report it.
    pub initial_cost: Time,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            // What Linux lets real-time tasks have.
            cpu_share: 0.95,
            period: Time(rate::DEFAULT_PERIOD),
            initial_cost: Time(Duration::from_nanos(rate::INITIAL_FAULT_UNIT)),
        }
    }
}

/// Defaults for requests that name no terms.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Frames.
    #[serde(deserialize_with = "from_text")]
    pub frames: FrameSpec,
    /// Disk.
    #[serde(deserialize_with = "from_text")]
    pub disk: DiskSpec,
    /// Swap; four times the most frames where `None`.
    pub swap: Option<Bytes>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            frames: FrameSpec {
                g: 16_384,
                x: 16_384,
            },
            disk: DiskSpec {
                slice: Duration::from_millis(25),
                period: Duration::from_millis(250),
                extra: true,
                laxity: LAXITY,
            },
            swap: None,
        }
    }
}

impl Defaults {
    /// The bytes of swap for so many frames at most.
    pub fn swap_for(&self, x: u32) -> u64 {
        self.swap
            .map_or(u64::from(x) * wired::PAGE as u64 * 4, |size| size.0)
    }

    /// The requested terms, with defaults for those that are `None`.
    ///
    /// Swap is rounded up to the filesystem's unit of allocation: rules count what a contract takes.
    pub fn terms(
        &self,
        frames: Option<FrameSpec>,
        disk: Option<DiskSpec>,
        swap: Option<u64>,
    ) -> ContractSpec {
        let frames = frames.unwrap_or(self.frames);
        let swap = swap.unwrap_or_else(|| self.swap_for(frames.x));
        ContractSpec {
            frames,
            disk: disk.unwrap_or(self.disk),
            swap: swap.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX),
        }
    }
}

fn socket() -> PathBuf {
    SOCKET.into()
}

/// The default of `disk.capacity`. The rest is headroom for scheduler overhead and device latency outliers.
fn capacity() -> f64 {
    0.95
}

fn processor_time() -> bool {
    true
}

/// About what it takes to wake a thread: so polling and then sleeping costs at most twice as much as
/// the better of the two.
fn poll_time() -> Time {
    Time(Duration::from_micros(50))
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|why| ConfigError::Read {
            path: path.into(),
            why,
        })?;
        Self::parse(&text, path)
    }

    /// Parses its text; `path` is for error messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let wrong = |at: usize, why: String| {
            let before = &text.as_bytes()[..at.min(text.len())];
            let line = before.iter().filter(|b| **b == b'\n').count() + 1;
            let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
            ConfigError::Text {
                path: path.into(),
                line,
                column,
                why,
            }
        };
        let config: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            wrong(at, with_form(error.message()))
        })?;
        match config.first_invalid() {
            Some((key, why)) => Err(wrong(place(text, &key).unwrap_or(0), why)),
            None => Ok(config),
        }
    }

    /// The parts of `new` that a running daemon cannot take over, and what each of them needs.
    pub fn differs(&self, new: &Self) -> Vec<&'static str> {
        const SOCKET: &str = "socket needs a restart, which tenants do not survive: they look for a daemon at the former one";
        const SWAP: &str = "disk.swap needs a restart, which tenants do not survive: their pages are in the former one";
        const DISK: &str = "disk needs a restart, which tenants survive";
        let socket = (self.socket != new.socket).then_some(SOCKET);
        let disk = match (self.disk == new.disk, self.disk.swap == new.disk.swap) {
            (true, _) => None,
            (false, true) => Some(DISK),
            (false, false) => Some(SWAP),
        };
        socket.into_iter().chain(disk).collect()
    }

    /// Frames for all contracts together, on a machine with `total` bytes.
    pub fn managed_frames(&self, total: u64) -> u32 {
        let frames = self.managed(total) / wired::PAGE as u64;
        frames.min(frames::Frame::MAX.into()) as u32
    }

    /// Refuses to promise more than a machine with `total` bytes has.
    pub fn check_memory(&self, total: u64) -> Result<(), ConfigError> {
        let (asked, there) = (self.managed(total), total);
        match asked > there {
            true => Err(ConfigError::Memory { asked, there }),
            false => Ok(()),
        }
    }

    /// Bytes of memory for all contracts together, on a machine with `total`.
    pub fn managed(&self, total: u64) -> u64 {
        self.memory.frames.map_or(total / 2, |size| size.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("x.toml")).map_err(|why| why.to_string())
    }

    #[test]
    fn only_the_swap_file_has_no_default() {
        let config = parse("[disk]\nswap = \"/var/lib/selfpage/swap\"\nsize = \"4G\"\n").unwrap();
        assert_eq!(config.socket, Path::new(SOCKET));
        assert_eq!(config.managed(8 << 30), 4 << 30);
        assert_eq!(config.default.swap_for(16_384), 256 << 20);
        let swap = |asked| config.default.terms(None, None, Some(asked)).swap;
        assert_eq!([0, 1, 1 << 20].map(swap), [0, 1 << 20, 1 << 20]);
        assert_eq!(swap(u64::MAX), u64::MAX);
    }

    #[test]
    fn more_memory_than_there_is_is_refused_with_the_figures() {
        let config = parse("[memory]\nframes = \"800G\"\n[disk]\nswap = \"/x\"\n").unwrap();
        let wrong = config.check_memory(24 << 30).unwrap_err().to_string();
        assert!(
            wrong.contains("800GiB") && wrong.contains("24GiB"),
            "{wrong}"
        );
        assert!(config.check_memory(800 << 30).is_ok());
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_line_and_the_expected_form() {
        for (text, form) in [
            ("[disk]\nswap = \"/x\"\n[allow]\nuid = 1\n", "[[allow]]"),
            ("[disk]\nswap = \"/x\"\npoll_time = 50\n", "\"50us\""),
            ("[disk]\nswap = \"swap\"\n", "from /"),
            ("[disk]\nswap = \"/x\"\n[[allow]]\nuid = \"me\"\n", "id -u"),
        ] {
            assert!(parse(text).unwrap_err().contains(form), "{text}");
        }
        let wrong = parse("[disk]\nswap = \"/x\"\nsiez = \"4G\"\n").unwrap_err();
        assert!(wrong.starts_with("x.toml:3:1: "), "{wrong}");
        assert!(wrong.contains("siez") && wrong.contains("size"), "{wrong}");
        let wrong = parse("[disk]\nswap = \"/x\"\nsize = \"4X\"\n").unwrap_err();
        assert!(
            wrong.starts_with("x.toml:3:8: ") && wrong.contains("4X"),
            "{wrong}"
        );
        let wrong = parse("[disk]\nswap = \"/x\"\n[default]\ndisk = \"3s/2s\"\n").unwrap_err();
        assert!(wrong.starts_with("x.toml:4:8: "), "{wrong}");
        let wrong = parse("[disk\n").unwrap_err();
        assert!(wrong.starts_with("x.toml:1:"), "{wrong}");
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_line() {
        let disk = "[disk]\nswap = \"/x\"\n";
        for (text, start) in [
            ("capacity = 1.5\n", "x.toml:3:12: disk.capacity"),
            (
                "[memory]\n\nrestart_grace = \"3600s\"\n",
                "x.toml:5:17: memory.restart_grace",
            ),
            (
                "[[allow]]\nuid = 0\n[[allow]]\nframes = \"1G\"\n",
                "x.toml:5:1: rule 2",
            ),
        ] {
            let wrong = parse(&format!("{disk}{text}")).unwrap_err();
            assert!(wrong.starts_with(start), "{wrong}");
        }
    }

    #[test]
    fn an_invalid_value_is_refused_by_its_name() {
        let disk = "[disk]\nswap = \"/x\"\n";
        for (text, part) in [
            ("capacity = 1.5\n", "disk.capacity is 1.5"),
            ("depth = 0\n", "disk.depth is 0"),
            ("[faults]\ncpu_share = 0.0\n", "faults.cpu_share is 0"),
            (
                "[faults]\ncpu_share = 0.0005\ninitial_cost = \"10ms\"\n",
                "promised 8 faults in a period",
            ),
            ("[faults]\nperiod = \"0ms\"\n", "faults.period is 0ns"),
            (
                "[faults]\ninitial_cost = \"1s\"\n",
                "faults.initial_cost is 1s",
            ),
            (
                "[[allow]]\nuid = 1\nfault_weight = 0\n",
                "fault_weight is 0",
            ),
            (
                "[memory]\nrevocation_deadline = \"0ms\"\n",
                "memory.revocation_deadline is 0ns",
            ),
            ("[memory]\nframes = \"4K\"\n", "memory.frames is 4KiB"),
            ("[[allow]]\nframes = \"1G\"\n", "rule 1 of allow"),
        ] {
            let wrong = parse(&format!("{disk}{text}")).unwrap_err();
            assert!(wrong.contains(part), "{wrong}");
        }
    }
}
