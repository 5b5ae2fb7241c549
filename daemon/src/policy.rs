//! The policy: which peers may request which contracts.
//!
//! The kernel names the peer of a connection (SO_PEERCRED: user, group,
//! process); the first rule that fits bounds what the contracts of one user may have together.
//!
//! User and group are the kernel's. The executable of a process is compared by device and inode,
//! not by its path, which may name another file in another mount namespace. It
//! distinguishes well-behaved programs of one user, and is no boundary between them: a user can
//! have an allowed program do anything (a debugger, a preloaded library), and a connection
//! stays open over exec.

use crate::peer::Peer;
use crate::refusal::PolicyRefusal;
use protocol::contract_spec::{ContractSpec, FrameSpec};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::Deserialize;
use std::path::PathBuf;
use wired::Bytes;

/// A user may have one contract for each of these bytes of the rule's frames, and
/// [`MIN_CONTRACTS`] in any case: each takes time of the daemon's loop, which no contract is charged for.
const FRAMES_OF_CONTRACT: u64 = 4 << 20;
const MIN_CONTRACTS: u64 = 16;

/// The most by which rounding puts sums of shares off.
const ROUNDING: f64 = 1e-9;

/// The peers that a rule names, and the most that the contracts of one of them may have together.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// A user.
    pub uid: Option<u32>,
    /// A group.
    pub gid: Option<u32>,
    /// The executable of the requesting process.
    pub executable: Option<PathBuf>,
    /// Most frames.
    pub frames: Option<Bytes>,
    /// Most of a disk's time, from 0 to 1.
    pub disk: Option<f64>,
    /// Largest swap file.
    pub swap: Option<Bytes>,
    /// Most processors that `--cpu` reserves, 0.5 for half of one: as many as `disk` where `None`.
    pub cpu: Option<f64>,
    /// Its weight in sharing out page faults: 1 where `None`.
    pub fault_weight: Option<u32>,
    /// True if its peers may see and change the contracts of others.
    pub admin: bool,
}

/// A process that sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its executable, where the kernel shows it.
    pub executable: Option<FileNumber>,
}

/// A file, by device and inode, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileNumber((u32, u32), u64);

impl FileNumber {
    fn of(path: impl rustix::path::Arg) -> Option<Self> {
        // A peer's executable may be on a file system that the peer itself serves: no call waits for that.
        let (flags, wanted) = (AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
        let found = rustix::fs::statx(CWD, path, flags, wanted).ok()?;
        let device = (found.stx_dev_major, found.stx_dev_minor);
        Some(Self(device, found.stx_ino))
    }
}

/// The resources that several contracts have together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContractTotals {
    frames: u64,
    disk: f64,
    swap: u64,
}

impl ContractTotals {
    /// The totals with one more contract.
    pub fn with(self, terms: &ContractSpec) -> Self {
        let FrameSpec { x, .. } = terms.frames;
        let disk = if terms.disk.period.is_zero() {
            0.0
        } else {
            terms.disk.share()
        };
        Self {
            frames: self
                .frames
                .saturating_add(u64::from(x) * wired::PAGE as u64),
            disk: self.disk + disk,
            swap: self.swap.saturating_add(terms.swap),
        }
    }
}

impl PeerIdentity {
    /// The peer of a connection.
    pub(super) fn of(peer: &Peer) -> Self {
        let found = FileNumber::of(format!("/proc/{}/exe", peer.pid.as_raw_nonzero()));
        Self {
            uid: peer.uid,
            gid: peer.gid,
            // If this process has ended, the file may be another process's.
            executable: found.filter(|_| peer.start().is_ok()),
        }
    }
}

impl Rule {
    fn fits(&self, peer: &PeerIdentity) -> bool {
        let is = |asked: Option<u32>, there: u32| asked.is_none_or(|asked| asked == there);
        let runs = |path: &PathBuf| {
            let executable = peer.executable;
            executable.is_some() && FileNumber::of(path) == executable
        };
        is(self.uid, peer.uid)
            && is(self.gid, peer.gid)
            && self.executable.as_ref().is_none_or(runs)
    }

    /// What is wrong with the rule, if anything.
    pub fn first_invalid(&self) -> Option<String> {
        if self.uid.is_none() && self.gid.is_none() && self.executable.is_none() {
            return Some("it names no peer: give it uid, gid or executable".into());
        }
        if self.fault_weight == Some(0) {
            return Some(
                "fault_weight is 0: its faults would never proceed; the least is 1".into(),
            );
        }
        if let Some(cpu) = self.cpu.filter(|cpu| !cpu.is_finite() || *cpu < 0.0) {
            return Some(format!(
                "cpu is {cpu}: a number of processors is 0.0 or more"
            ));
        }
        let share = self.disk.filter(|share| !(0.0..=1.0).contains(share))?;
        Some(format!("disk is {share}: a share is between 0.0 and 1.0"))
    }

    /// Why a user whose contracts have `held` may not have these `terms` as well, if so.
    fn refusal(&self, held: ContractTotals, terms: &ContractSpec) -> Option<PolicyRefusal> {
        let (asked, all) = (ContractTotals::default().with(terms), held.with(terms));
        if let Some(most) = self.frames
            && asked.frames > 0
            && all.frames > most.0
        {
            return Some(PolicyRefusal::Memory {
                asked: Bytes(asked.frames),
                what: "frames",
                held: Bytes(held.frames),
                most,
            });
        }
        if let Some(most) = self.disk
            && asked.disk > 0.0
            && all.disk > most + ROUNDING
        {
            return Some(PolicyRefusal::Disk {
                asked: asked.disk * 100.0,
                held: held.disk * 100.0,
                most: most * 100.0,
            });
        }
        let most = self
            .swap
            .filter(|most| asked.swap > 0 && all.swap > most.0)?;
        Some(PolicyRefusal::Memory {
            asked: Bytes(asked.swap),
            what: "swap",
            held: Bytes(held.swap),
            most,
        })
    }
}

/// The weight of `peer` in sharing out faults: that of the first rule that fits.
pub fn fault_weight(rules: &[Rule], peer: &PeerIdentity) -> u32 {
    let rule = rules.iter().find(|rule| rule.fits(peer));
    rule.and_then(|rule| rule.fault_weight).unwrap_or(1)
}

/// Checks that `peer`, whose contracts have `held`, may have `terms` as well; if not, why.
pub fn check(
    rules: &[Rule],
    own: u32,
    peer: &PeerIdentity,
    held: ContractTotals,
    terms: &ContractSpec,
) -> Result<(), PolicyRefusal> {
    let rule = rule_of(rules, own, peer)?;
    let refusal = rule.and_then(|rule| rule.refusal(held, terms));
    refusal.map_or(Ok(()), Err)
}

/// Checks that `peer`, with `held` contracts, may have one more; returns the reason where it may not.
pub fn check_number(
    rules: &[Rule],
    own: u32,
    peer: &PeerIdentity,
    held: usize,
) -> Result<(), PolicyRefusal> {
    let frames = rule_of(rules, own, peer)?.and_then(|rule| rule.frames);
    let most = frames.map(|frames| (frames.0 / FRAMES_OF_CONTRACT).max(MIN_CONTRACTS));
    match most.filter(|most| held as u64 >= *most) {
        Some(most) => Err(PolicyRefusal::Contracts { most }),
        None => Ok(()),
    }
}

/// Checks that `peer`, whose contracts reserve `held` processors, may reserve `asked` as well; if
/// not, why.
pub fn check_reservation(
    rules: &[Rule],
    own: u32,
    peer: &PeerIdentity,
    held: f64,
    asked: f64,
) -> Result<(), PolicyRefusal> {
    let most = rule_of(rules, own, peer)?.and_then(|rule| rule.cpu.or(rule.disk));
    match most.filter(|most| asked > 0.0 && held + asked > most + ROUNDING) {
        Some(most) => Err(PolicyRefusal::Processors {
            asked,
            // The sum of none is -0.
            held: held.abs(),
            most,
        }),
        None => Ok(()),
    }
}

/// The rule that bounds a peer; `None` for root and the daemon's own user, whom no rule bounds.
fn rule_of<'a>(
    rules: &'a [Rule],
    own: u32,
    peer: &PeerIdentity,
) -> Result<Option<&'a Rule>, PolicyRefusal> {
    if peer.uid == 0 || peer.uid == own {
        return Ok(None);
    }
    let rule = rules.iter().find(|rule| rule.fits(peer));
    rule.map(Some).ok_or(PolicyRefusal::NoRule {
        uid: peer.uid,
        gid: peer.gid,
    })
}

/// Returns true if `peer` may see and set contracts of others.
pub fn is_admin(rules: &[Rule], own: u32, peer: &PeerIdentity) -> bool {
    let rule = rules.iter().find(|rule| rule.fits(peer));
    peer.uid == 0 || peer.uid == own || rule.is_some_and(|rule| rule.admin)
}

#[cfg(test)]
mod tests;
