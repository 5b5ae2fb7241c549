//! The limits of a program that this one executes.
//!
//! The kernel hands on its own limits, which have a reserve in them, and a variable of the environment has the
//! reserve. A program without this library has none: while that is executed the soft limit is the program's itself;
//! the hard one stays, since an ordinary user could not raise it again where the exec fails.

use super::{Limit, LimitKind, RESERVES};
use crate::exec::{CStringArray, strings};
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::Ordering;

/// `SELFPAGE_LIMITS=BYTES,BYTES`: the reserves of the limits on address space and on data; 0 where no limit
/// was set.
const NAME: &[u8] = b"SELFPAGE_LIMITS=";

/// Of the longest variable: two numbers of 20 digits, each with what follows it.
const LEN: usize = NAME.len() + 2 * 21;

/// Returns true if an entry of an environment is the variable.
pub fn is_variable(entry: &CStr) -> bool {
    entry.to_bytes().starts_with(NAME)
}

/// The variable with this process's reserves, in place: there is no heap between vfork and exec.
pub struct LimitsVariable([u8; LEN]);

impl LimitsVariable {
    /// `None` where no limit was set.
    pub fn new() -> Option<Self> {
        let reserves = LimitKind::ALL.map(LimitKind::reserve);
        (reserves != [0; 2]).then(|| Self::of(reserves))
    }

    fn of(reserves: [u64; 2]) -> Self {
        let mut text = [0; LEN];
        let mut at = &mut text[..LEN - 1];
        // Room for the longest numbers.
        let _ = at.write_all(NAME);
        let _ = write!(at, "{},{}", reserves[0], reserves[1]);
        Self(text)
    }

    /// The entry of an environment.
    pub fn entry(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The reserves that an entry of an environment has.
fn parse(entry: &[u8]) -> [u64; 2] {
    let text = entry.strip_prefix(NAME).unwrap_or_default();
    let mut numbers = std::str::from_utf8(text).unwrap_or_default().split(',');
    LimitKind::ALL.map(|_| numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// Takes over the reserves that a new image begins with. A soft limit without one is lifted to the hard one until
/// [`init`](super::init), and returned. First in the constructor.
///
/// # Safety
/// `environment` is an array of C strings ended by null, or null.
pub unsafe fn lift_inherited(environment: CStringArray) -> [Option<u64>; 2] {
    // SAFETY: the caller's.
    let mut entries = unsafe { strings(environment) };
    let passed = entries
        .find(|entry| is_variable(entry))
        .map_or([0; 2], |entry| parse(entry.to_bytes()));
    LimitKind::ALL.map(|kind| {
        let reserve = passed[kind as usize];
        RESERVES[kind as usize].store(reserve, Ordering::Release);
        let found = kind.current().filter(|found| found.soft != found.hard)?;
        // A program without this library sets limits that have none.
        if reserve != 0 && found.soft >= reserve {
            return None;
        }
        kind.set(&Limit {
            soft: found.hard,
            hard: found.hard,
        });
        Some(found.soft)
    })
}

/// The kernel's limits, while a program without this library is executed; put back where that fails.
pub struct UnpagedLimits([Option<Limit>; 2]);

/// Gives the kernel the soft limits as the program set them. Safe between vfork and exec.
pub fn for_unpaged_image() -> UnpagedLimits {
    UnpagedLimits(LimitKind::ALL.map(|kind| {
        let now = kind.current()?;
        let soft = now.without(kind.reserve()).soft;
        kind.set(&Limit {
            soft,
            hard: now.hard,
        });
        Some(now)
    }))
}

impl Drop for UnpagedLimits {
    fn drop(&mut self) {
        for (kind, before) in LimitKind::ALL.into_iter().zip(self.0) {
            if let Some(before) = before {
                kind.set(&before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_holds_the_longest_reserves() {
        for reserves in [[u64::MAX; 2], [0, u64::MAX], [u64::MAX, 0]] {
            let variable = LimitsVariable::of(reserves);
            assert!(is_variable(variable.entry()));
            assert_eq!(parse(variable.entry().to_bytes()), reserves);
        }
        assert_eq!(parse(b"SELFPAGE_LIMITS=1;,2"), [0, 2]);
        assert_eq!(parse(b"SELFPAGE_LIMITS="), [0; 2]);
    }
}
