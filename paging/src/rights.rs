//! Rights: what the process may do with each stretch.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.1: protection is at stretch
//! granularity; a protection domain maps stretches to subsets of {read, write, execute, meta},
//! and a holder of *meta* may change protections and mappings.
//!
//! A Linux process is one protection domain. The kernel enforces read, write and execute,
//! for all its threads alike; meta is discipline, checked by the calls that need it. Rights
//! per thread need memory protection keys, and a staging slot would inherit a stretch's
//! key, so that the evictor could not read it: not done, and not to be done untried.

/// A subset of {read, write, execute, meta}.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Rights(u8);

impl Rights {
    /// No right at all.
    pub const NONE: Rights = Rights(0);
    /// To load from the stretch.
    pub const READ: Rights = Rights(1);
    /// To store to it.
    pub const WRITE: Rights = Rights(2);
    /// To run code in it.
    pub const EXECUTE: Rights = Rights(4);
    /// To change its protections and mappings.
    pub const META: Rights = Rights(8);
    /// What an owner begins with.
    pub const ALL: Rights = Rights(15);

    const NAMES: [(Rights, &str); 4] = [
        (Rights::READ, "read"),
        (Rights::WRITE, "write"),
        (Rights::EXECUTE, "execute"),
        (Rights::META, "meta"),
    ];

    /// As a number, for a word that several threads read.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// From [`Rights::bits`].
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Returns true if all of `needed` are held.
    pub const fn contains(self, needed: Rights) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// Those not in `other`.
    pub const fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }

    /// Returns true if there is none.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Rights {
    type Output = Rights;
    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

impl std::ops::BitAnd for Rights {
    type Output = Rights;
    fn bitand(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut between = "{";
        for (right, name) in Self::NAMES {
            if self.contains(right) {
                write!(f, "{between}{name}")?;
                between = ", ";
            }
        }
        f.write_str(if self.is_none() { "{}" } else { "}" })
    }
}

impl std::fmt::Debug for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A right that was needed and is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "stretch {stretch}: {needed} is needed and the protection domain holds {held}; a holder of \
     meta on the stretch can grant {}", needed.without(*held)
)]
pub struct Denied {
    /// The stretch.
    pub stretch: u32,
    /// What was needed.
    pub needed: Rights,
    /// What is held.
    pub held: Rights,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_missing() {
        let held = Rights::READ;
        let denied = Denied {
            stretch: 7,
            needed: Rights::META,
            held,
        };
        let text = denied.to_string();
        assert!(
            text.contains("{meta} is needed") && text.contains("holds {read}"),
            "{text}"
        );
    }

    #[test]
    fn rights_are_a_set() {
        let both = Rights::READ | Rights::WRITE;
        assert!(both.contains(Rights::READ) && !both.contains(Rights::META));
        assert_eq!(both.without(Rights::READ), Rights::WRITE);
        assert_eq!(Rights::from_bits(Rights::ALL.bits()), Rights::ALL);
        assert_eq!(Rights::NONE.to_string(), "{}");
    }
}
