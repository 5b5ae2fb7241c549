//! The limits of a program that this one executes.
//!
//! The kernel hands on its own limits, which have this program's reserve in them. While a program is
//! executed the soft one is the program's itself, since a program without this library has no reserve;
//! the hard one stays, since an ordinary user could not raise it again where the exec fails. The C
//! library's own ways (`posix_spawn`, `system`) hand on both. So a variable of the environment has the
//! program's limits, and beside them the kernel's: where the new image finds others, another process
//! has set them, and the variable says nothing of those.

use super::{Limit, LimitKind, LimitPair, SET};
use crate::exec::{CStringArray, strings};
use std::ffi::CStr;
use std::io::Write;

/// `SELFPAGE_LIMITS=SOFT,HARD,SOFT,HARD;SOFT,HARD,SOFT,HARD`: the program's limit and the kernel's, on
/// address space and on data. What the program did not set is left out.
const NAME: &[u8] = b"SELFPAGE_LIMITS=";

/// Of the longest variable: eight numbers of 20 digits, each with what follows it.
const LEN: usize = NAME.len() + 8 * 21 + 1;

/// Returns true if an entry of an environment is the variable.
pub fn is_variable(entry: &CStr) -> bool {
    entry.to_bytes().starts_with(NAME)
}

/// The variable with this process's limits, in place: there is no heap between vfork and exec.
pub struct LimitsVariable([u8; LEN]);

impl LimitsVariable {
    /// `None` where the program has not set a limit.
    pub fn new() -> Option<Self> {
        let set = LimitKind::ALL.map(set_here);
        set.iter().any(Option::is_some).then(|| Self::of(set))
    }

    fn of(set: [Option<LimitPair>; 2]) -> Self {
        let mut text = [0; LEN];
        let mut at = &mut text[..LEN - 1];
        // Room for the longest numbers.
        let _ = at.write_all(NAME);
        for (n, set) in set.into_iter().enumerate() {
            if n > 0 {
                let _ = at.write_all(b";");
            }
            if let Some(LimitPair {
                requested,
                effective,
            }) = set
            {
                let _ = write!(
                    at,
                    "{},{},{},{}",
                    requested.soft, requested.hard, effective.soft, effective.hard
                );
            }
        }
        Self(text)
    }

    /// The entry of an environment.
    pub fn entry(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The limits that an entry of an environment has.
fn parse(entry: &[u8]) -> [Option<LimitPair>; 2] {
    let text = entry.strip_prefix(NAME).unwrap_or_default();
    let mut kinds = std::str::from_utf8(text).unwrap_or_default().split(';');
    LimitKind::ALL.map(|_| {
        let mut numbers = kinds.next()?.split(',').map(str::parse);
        let mut limit = || {
            let (soft, hard) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some(Limit { soft, hard })
        };
        let (requested, effective) = (limit()?, limit()?);
        Some(LimitPair {
            requested,
            effective,
        })
    })
}

/// The limit that the program set, where it is in force: another process may have changed the kernel's,
/// and the child of a vfork has its parent's memory, but limits of its own.
fn set_here(kind: LimitKind) -> Option<LimitPair> {
    let set = (*SET[kind as usize].try_lock()?)?;
    (set.requested != set.effective && kind.current()? == set.effective).then_some(set)
}

/// Takes over the limits that a new image begins with, and lifts the kernel's to the hard ones until
/// [`init`](super::init). First in the constructor.
///
/// # Safety
/// `environment` is an array of C strings ended by null, or null.
pub unsafe fn lift_inherited(environment: CStringArray) {
    // SAFETY: the caller's.
    let mut entries = unsafe { strings(environment) };
    let passed = entries
        .find(|entry| is_variable(entry))
        .map_or([None; 2], |entry| parse(entry.to_bytes()));
    for (kind, passed) in LimitKind::ALL.into_iter().zip(passed) {
        let Some(found) = kind
            .current()
            .filter(|found| found.soft != libc::RLIM_INFINITY)
        else {
            continue;
        };
        let requested = requested(found, passed);
        let lifted = Limit {
            soft: found.hard,
            hard: found.hard,
        };
        if lifted == requested {
            continue;
        }
        kind.set(&lifted);
        *SET[kind as usize].lock() = Some(LimitPair {
            requested,
            effective: lifted,
        });
    }
}

/// The program's limit where the kernel's is `found`.
fn requested(found: Limit, passed: Option<LimitPair>) -> Limit {
    let is_of = |passed: &LimitPair| {
        let soft = [passed.requested.soft, passed.effective.soft];
        found.hard == passed.effective.hard && soft.contains(&found.soft)
    };
    passed
        .filter(is_of)
        .map_or(found, |passed| passed.requested)
}

/// The program's own limits, while it begins another image; put back where that fails.
pub struct ExecLimits([Option<LimitPair>; 2]);

/// Gives the kernel the soft limits as the program set them. Safe between vfork and exec.
pub fn for_exec() -> ExecLimits {
    ExecLimits(LimitKind::ALL.map(|kind| {
        let set = set_here(kind)?;
        kind.set(&Limit {
            soft: set.requested.soft,
            hard: set.effective.hard,
        });
        Some(set)
    }))
}

impl Drop for ExecLimits {
    fn drop(&mut self) {
        for (kind, set) in LimitKind::ALL.into_iter().zip(self.0) {
            if let Some(set) = set {
                kind.set(&set.effective);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(soft: u64, hard: u64) -> Limit {
        Limit { soft, hard }
    }

    #[test]
    fn the_variable_holds_the_longest_limits() {
        let longest = limit(u64::MAX, u64::MAX);
        let pair = LimitPair {
            requested: longest,
            effective: longest,
        };
        for set in [[Some(pair); 2], [None, Some(pair)], [Some(pair), None]] {
            let variable = LimitsVariable::of(set);
            assert!(is_variable(variable.entry()));
            assert_eq!(parse(variable.entry().to_bytes()), set);
        }
        assert_eq!(parse(b"SELFPAGE_LIMITS=1,2,3;,"), [None; 2]);
    }

    #[test]
    fn limits_that_another_program_set_are_the_programs_own() {
        let passed = Some(LimitPair {
            requested: limit(10, 20),
            effective: limit(110, 120),
        });
        assert_eq!(requested(limit(10, 120), passed), limit(10, 20));
        assert_eq!(requested(limit(110, 120), passed), limit(10, 20));
        assert_eq!(requested(limit(50, 120), passed), limit(50, 120));
        assert_eq!(requested(limit(10, 60), passed), limit(10, 60));
    }
}
