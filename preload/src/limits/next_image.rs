//! The limits of a program that this one executes.
//!
//! The kernel hands on its own limits, which have a reserve in them, and a variable of the environment has the
//! reserve, and the limits that it belongs to: those that a program without this library sets have none. While one is
//! executed the soft limit is the program's itself; the hard one stays, since an ordinary user could not raise it
//! again where the exec fails.

use super::{FIRST_HARD, Limit, LimitKind, RESERVES, Room};
use crate::exec::{CStringArray, strings};
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::Ordering;

/// `SELFPAGE_LIMITS=` and numbers of bytes with commas between: the reserve of the limit on address space, the
/// hard limit that the tree began with, the kernel's soft and hard limits, and then those of the limit on data.
const NAME: &[u8] = b"SELFPAGE_LIMITS=";

/// Of the longest variable: numbers of 20 digits, each with what follows it.
const LEN: usize = NAME.len() + 8 * 21;

/// What the variable has of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassedLimit {
    room: Room,
    kernels: Limit,
}

/// Returns true if an entry of an environment is the variable.
pub fn is_variable(entry: &CStr) -> bool {
    entry.to_bytes().starts_with(NAME)
}

/// The variable with this process's limits, in place: there is no heap between vfork and exec.
pub struct LimitsVariable([u8; LEN]);

impl LimitsVariable {
    /// `None` where no limit was set.
    pub fn new() -> Option<Self> {
        let passed = LimitKind::ALL.map(|kind| PassedLimit {
            room: kind.room(),
            kernels: kind.current().unwrap_or(Limit { soft: 0, hard: 0 }),
        });
        let is_set = passed.iter().any(|passed| passed.room.reserve != 0);
        is_set.then(|| Self::of(passed))
    }

    fn of(passed: [PassedLimit; 2]) -> Self {
        let mut text = [0; LEN];
        let mut at = &mut text[..LEN - 1];
        // Room for the longest numbers.
        let _ = at.write_all(NAME);
        for (n, PassedLimit { room, kernels }) in passed.into_iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            let Room {
                reserve,
                first_hard,
            } = room;
            let Limit { soft, hard } = kernels;
            let _ = write!(at, "{comma}{reserve},{first_hard},{soft},{hard}");
        }
        Self(text)
    }

    /// The entry of an environment.
    pub fn entry(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// What an entry of an environment has of each limit.
fn parse(entry: &[u8]) -> [PassedLimit; 2] {
    let text = entry.strip_prefix(NAME).unwrap_or_default();
    let mut numbers = std::str::from_utf8(text).unwrap_or_default().split(',');
    let mut next = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    LimitKind::ALL.map(|_| PassedLimit {
        room: Room {
            reserve: next(),
            first_hard: next(),
        },
        kernels: Limit {
            soft: next(),
            hard: next(),
        },
    })
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
        .map_or(parse(b""), |entry| parse(entry.to_bytes()));
    LimitKind::ALL.map(|kind| {
        let PassedLimit { room, kernels } = passed[kind as usize];
        let found = kind.current()?;
        // A hard limit that no program with this library has set is as good as one from before the tree.
        let has_reserve = room.reserve != 0 && kernels.hard == found.hard;
        let room = match has_reserve {
            true => room,
            false => Room {
                reserve: 0,
                first_hard: found.hard,
            },
        };
        RESERVES[kind as usize].store(room.reserve, Ordering::Release);
        FIRST_HARD[kind as usize].store(room.first_hard, Ordering::Relaxed);
        if found.soft == found.hard || has_reserve && kernels.soft == found.soft {
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
pub struct LimitsWithoutRoom([Option<Limit>; 2]);

impl LimitsWithoutRoom {
    /// Gives the kernel the soft limits as the program set them. Safe between vfork and exec.
    pub fn set() -> Self {
        Self(LimitKind::ALL.map(|kind| {
            let now = kind.current()?;
            let soft = now.as_shown(kind.room()).soft;
            kind.set(&Limit {
                soft,
                hard: now.hard,
            });
            Some(now)
        }))
    }
}

impl Drop for LimitsWithoutRoom {
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
    fn the_variable_holds_the_longest_limits() {
        let limit = |[reserve, first_hard, soft, hard]: [u64; 4]| PassedLimit {
            room: Room {
                reserve,
                first_hard,
            },
            kernels: Limit { soft, hard },
        };
        let longest = limit([u64::MAX; 4]);
        let other = limit([0, 1, 2, u64::MAX]);
        for passed in [[longest; 2], [other, longest], [longest, other]] {
            let variable = LimitsVariable::of(passed);
            assert!(is_variable(variable.entry()));
            assert_eq!(parse(variable.entry().to_bytes()), passed);
        }
        let none = limit([0; 4]);
        assert_eq!(parse(b"SELFPAGE_LIMITS=1,;,2"), [limit([1, 0, 2, 0]), none]);
        assert_eq!(parse(b"SELFPAGE_LIMITS="), [none; 2]);
    }
}
