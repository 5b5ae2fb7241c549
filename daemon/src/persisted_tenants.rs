//! What the swap filesystem keeps of a tenant, so that a daemon that is started again knows
//! whose each swap file is.

use disk::cost_model::CostModel;
use disk::swapfs::{FileName, MAX_BLOB};
use protocol::contract_spec::{ContractSpec, FrameSpec};
use protocol::{NAME, ResumeToken, cut};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Version of this record; a record of another version names no tenant.
const VERSION: u8 = 1;

/// A tenant as it is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    version: u8,
    /// Its number.
    pub number: u32,
    /// Its name, for people.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// When that started: with its number, its name until the machine does.
    pub start: u64,
    /// Which run of the machine that was.
    pub boot: [u8; 16],
    /// Its user.
    pub uid: u32,
    /// Its contract, in force.
    pub terms: ContractSpec,
    /// What its frames will be after the notice.
    pub later: Option<FrameSpec>,
    /// Channels that it may hand over after a restart, whatever its user has then: as many as it has had at a
    /// time, or up to twice as many.
    pub channels: u32,
    /// Processor time that it has reserved: runtime and period.
    pub reservation: Option<(Duration, Duration)>,
    /// The disk's figures that its contract was admitted by: a daemon that has lost them, and has no room to measure
    /// the disk on beside its tenants' files, goes by these.
    pub disk: Option<CostModel>,
}

/// Channels that are recorded for each tenant: the record of most is not written again for them.
const CHANNELS: u32 = 4;

/// What records may lack that an earlier version wrote, which is last, and none or zero there.
const LATER_FIELDS: usize = 4;

impl TenantRecord {
    /// Of a tenant that comes in now.
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

    /// As bytes; within what a file keeps.
    pub fn encode(&self) -> Vec<u8> {
        // Numbers, and a name that was cut: it always fits.
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        debug_assert!(!bytes.is_empty() && bytes.len() <= MAX_BLOB);
        bytes
    }

    /// From bytes; `None` where they are no record of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        // What is beyond the record is not read.
        let bytes = [bytes, &[0; LATER_FIELDS]].concat();
        let record: Self = postcard::from_bytes(&bytes).ok()?;
        (record.version == VERSION).then_some(record)
    }

    /// The process, if it may still run.
    pub fn process(&self) -> Option<Pid> {
        let pid = Pid::from_raw(self.pid)?;
        let boot = boot();
        // Where /proc could not be read the process's start decides.
        let is_same = boot == self.boot || [boot, self.boot].contains(&UNKNOWN_BOOT);
        let same = is_same && host::process_tree::is_running(pid, self.start);
        same.then_some(pid)
    }
}

/// A name that is one line of a log and does nothing to a terminal.
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

/// What stands for a run of the machine that could not be found out.
const UNKNOWN_BOOT: [u8; 16] = [0; 16];

/// Tells this run of the machine from every other.
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
    fn a_record_comes_back_and_fits() {
        let mut record = record(&"n".repeat(2 * NAME));
        record.channels = 0;
        let bytes = record.encode();
        assert_eq!(
            TenantRecord::decode(&bytes[..bytes.len() - LATER_FIELDS]),
            Some(record.clone())
        );
        record.channels = u32::MAX;
        record.reservation = Some((Duration::MAX, Duration::MAX));
        let dear = OpCost {
            base: Nanos(u64::MAX),
            per_kib: Nanos(u64::MAX),
        };
        record.disk = Some(CostModel {
            read: dear,
            write: dear,
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
    fn a_process_is_not_gone_for_want_of_a_descriptor_to_read_of_it() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        const LIMITED: &str = "SELFPAGE_TEST_LIMITED";
        if std::env::var_os(LIMITED).is_none() {
            // The limit is of all threads.
            let limited = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["want_of_a_descriptor", "--test-threads=1"])
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
    fn a_process_of_another_run_of_the_machine_is_gone() {
        let mut record = record("x");
        assert!(record.process().is_some());
        record.boot[3] ^= 1;
        assert!(record.process().is_none());
        record.boot[3] ^= 1;
        record.start += 1;
        assert!(record.process().is_none());
    }
}
