//! The record of a tenant in the swap filesystem, from which a restarted daemon knows
//! the tenant of each swap file.

use disk::cost_model::CostModel;
use disk::swapfs::{FileName, MAX_BLOB};
use protocol::contract_spec::{ContractSpec, FrameSpec};
use protocol::{NAME, ResumeToken, cut};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Version of this record; a record of another version names no tenant.
const VERSION: u8 = 1;

/// The record of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    version: u8,
    /// Its number.
    pub number: u32,
    /// Its name, for human readers.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// When the process started, which together with its pid identifies it until the machine restarts.
    pub start: u64,
    /// The boot id of the machine's run in which it started.
    pub boot: [u8; 16],
    /// Its user.
    pub uid: u32,
    /// Its contract, in force.
    pub terms: ContractSpec,
    /// What its frames will be after the notice.
    pub later: Option<FrameSpec>,
    /// Channels that it may hand over after a restart, whatever else its user has by then: as many as it has had at a
    /// time, or up to twice as many.
    pub channels: u32,
    /// Processor time that it has reserved: runtime and period.
    pub reservation: Option<(Duration, Duration)>,
    /// The cost model by which its contract was admitted: a daemon that has lost the calibration, and has no room to measure
    /// the disk beside its tenants' files, uses this one.
    pub disk: Option<CostModel>,
}

/// Channels that are recorded for a new tenant: most tenants never have more, and their records need not be written again.
const CHANNELS: u32 = 4;

/// Fields at the end of a record that records of earlier versions may lack. They read as `None` or zero there.
const LATER_FIELDS: usize = 4;

impl TenantRecord {
    /// The record of a new tenant.
    pub fn new(
        number: u32,
        name: &str,
        pid: Pid,
        start: u64,
        uid: u32,
        terms: ContractSpec,
    ) -> Self {
        Self {
            version: VERSION,
            number,
            name: cut(&printable(name), NAME),
            pid: pid.as_raw_nonzero().get(),
            start,
            boot: boot(),
            uid,
            terms,
            later: None,
            channels: CHANNELS,
            reservation: None,
            disk: None,
        }
    }

    /// Encodes the record, in [`MAX_BLOB`] bytes at most.
    pub fn encode(&self) -> Vec<u8> {
        // It always fits: it has numbers, and a name of limited length.
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        debug_assert!(!bytes.is_empty() && bytes.len() <= MAX_BLOB);
        bytes
    }

    /// Decodes a record; `None` where the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        // Bytes after the record are not read.
        let bytes = [bytes, &[0; LATER_FIELDS]].concat();
        let record: Self = postcard::from_bytes(&bytes).ok()?;
        (record.version == VERSION).then_some(record)
    }

    /// The process, if it may still run.
    pub fn process(&self) -> Option<Pid> {
        let pid = Pid::from_raw(self.pid)?;
        let boot = boot();
        // Where the boot id could not be read, the start time alone decides.
        let is_same = boot == self.boot || [boot, self.boot].contains(&UNKNOWN_BOOT);
        let same = is_same && host::process_tree::is_running(pid, self.start);
        same.then_some(pid)
    }
}

/// Replaces control characters, which could forge a line of the log or control a terminal.
fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The name of a tenant's swap file: it cannot be guessed, so it authenticates the tenant.
pub fn file_name(resume_token: &ResumeToken) -> FileName {
    // A resume_token is as long as the shortest name.
    FileName::new(&resume_token.0).unwrap_or_else(|_| unreachable!("a resume_token is a name"))
}

/// The resume_token of a swap file.
pub fn resume_token(name: &FileName) -> Option<ResumeToken> {
    name.as_bytes().try_into().ok().map(ResumeToken)
}

/// Stands for a boot id that could not be read.
const UNKNOWN_BOOT: [u8; 16] = [0; 16];

/// The boot id of the machine, which differs in every run.
fn boot() -> [u8; 16] {
    host::boot::boot_id().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::atropos::Utilization;
    use disk::cost_model::OpCost;
    use disk::time::Nanos;

    fn record(name: &str) -> TenantRecord {
        let terms = ContractSpec {
            frames: "64M+64M".parse().unwrap(),
            disk: "25ms/250ms,extra".parse().unwrap(),
            swap: u64::MAX,
        };
        let us = rustix::process::getpid();
        let start = host::process_tree::process(us).start;
        TenantRecord::new(u32::MAX, name, us, start, u32::MAX, terms)
    }

    #[test]
    fn a_record_is_decoded_as_it_was_and_fits() {
        let mut record = record(&"n".repeat(2 * NAME));
        record.channels = 0;
        let bytes = record.encode();
        assert_eq!(
            TenantRecord::decode(&bytes[..bytes.len() - LATER_FIELDS]),
            Some(record.clone())
        );
        record.channels = u32::MAX;
        record.reservation = Some((Duration::MAX, Duration::MAX));
        let highest = OpCost {
            base: Nanos(u64::MAX),
            per_kib: Nanos(u64::MAX),
        };
        record.disk = Some(CostModel {
            read: highest,
            write: highest,
            bound: Nanos(u64::MAX),
            capacity: Utilization::percent(95),
        });
        let most = u32::MAX;
        record.later = Some(FrameSpec { g: most, x: most });
        let bytes = record.encode();
        assert!(bytes.len() <= MAX_BLOB);
        assert_eq!(TenantRecord::decode(&bytes), Some(record));
        assert_eq!(TenantRecord::decode(&bytes[..9]), None);
        assert_eq!(TenantRecord::decode(&[]), None);
    }

    #[test]
    fn a_name_cannot_forge_a_line_of_the_log() {
        assert_eq!(record("a\nselfpage\x1b[2J\u{9b}").name, "a?selfpage?[2J?");
    }

    #[test]
    fn a_process_is_not_taken_for_ended_for_lack_of_a_descriptor() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        const LIMITED: &str = "SELFPAGE_TEST_LIMITED";
        if std::env::var_os(LIMITED).is_none() {
            // The limit applies to all threads.
            let limited = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["a_process_is_not_taken_for_ended", "--test-threads=1"])
                .env(LIMITED, "1")
                .output()
                .unwrap();
            return assert!(limited.status.success(), "{limited:?}");
        }
        let mut record = record("x");
        let (current, maximum) = (Some(0), Some(0));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        assert!(record.process().is_some());
        record.boot = UNKNOWN_BOOT;
        assert!(record.process().is_some());
    }

    #[test]
    fn a_process_of_another_run_of_the_machine_has_ended() {
        let mut record = record("x");
        assert!(record.process().is_some());
        record.boot[3] ^= 1;
        assert!(record.process().is_none());
        record.boot[3] ^= 1;
        record.start += 1;
        assert!(record.process().is_none());
    }
}
