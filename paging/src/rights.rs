//! Rights: what a protection domain may do with each stretch.
//!
//! From *Self-Paging in the Nemesis Operating System*, section 6.1: protection is at
//! stretch granularity; a protection domain maps stretches to subsets of {read, write,
//! execute, meta}, and who holds *meta* may change protections and mappings.
//!
//! Pure: this says what is allowed. What the processor enforces of it (read, write and
//! execute, per process, or per thread with memory protection keys) is done elsewhere;
//! meta is checked by the calls that need it.

use std::collections::BTreeMap;

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

    /// Whether all of `needed` are held.
    pub const fn contains(self, needed: Rights) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// Those not in `other`.
    pub const fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }

    /// Whether there is none.
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

/// What its threads may do with each stretch. A stretch not named: nothing.
#[derive(Clone, Debug, Default)]
pub struct ProtectionDomain {
    rights: BTreeMap<u32, Rights>,
}

impl ProtectionDomain {
    /// One without any rights.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the owner of a new stretch all rights on it.
    pub fn own(&mut self, stretch: u32) {
        self.rights.insert(stretch, Rights::ALL);
    }

    /// Forgets a stretch that is gone.
    pub fn forget(&mut self, stretch: u32) {
        self.rights.remove(&stretch);
    }

    /// The rights on a stretch.
    pub fn rights(&self, stretch: u32) -> Rights {
        self.rights.get(&stretch).copied().unwrap_or_default()
    }

    /// Whether all of `needed` are held on the stretch.
    pub fn check(&self, stretch: u32, needed: Rights) -> Result<(), Denied> {
        let held = self.rights(stretch);
        if held.contains(needed) {
            Ok(())
        } else {
            Err(Denied {
                stretch,
                needed,
                held,
            })
        }
    }

    /// Whether mappings and protections of the stretch may be changed.
    pub fn check_meta(&self, stretch: u32) -> Result<(), Denied> {
        self.check(stretch, Rights::META)
    }

    /// Changes this domain's own rights on a stretch, for which it needs meta: giving up
    /// meta is for good. What the rights were.
    pub fn change(&mut self, stretch: u32, rights: Rights) -> Result<Rights, Denied> {
        self.check_meta(stretch)?;
        Ok(self.set(stretch, rights))
    }

    /// Changes another domain's rights on a stretch, for which this one needs meta. What
    /// the rights were.
    pub fn change_of(
        &self,
        other: &mut ProtectionDomain,
        stretch: u32,
        rights: Rights,
    ) -> Result<Rights, Denied> {
        self.check_meta(stretch)?;
        Ok(other.set(stretch, rights))
    }

    fn set(&mut self, stretch: u32, rights: Rights) -> Rights {
        let before = match rights {
            Rights::NONE => self.rights.remove(&stretch),
            rights => self.rights.insert(stretch, rights),
        };
        before.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stretch_nobody_spoke_of_may_not_even_be_read() {
        let domain = ProtectionDomain::new();
        assert!(domain.check(1, Rights::READ).is_err());
        assert!(domain.check(1, Rights::NONE).is_ok());
    }

    #[test]
    fn without_meta_nothing_is_changed_and_the_refusal_says_what_is_missing() {
        let mut owner = ProtectionDomain::new();
        owner.own(7);
        let mut guest = ProtectionDomain::new();
        assert_eq!(
            owner.change_of(&mut guest, 7, Rights::READ),
            Ok(Rights::NONE)
        );
        let denied = guest.change(7, Rights::ALL).unwrap_err();
        assert_eq!(
            denied.to_string(),
            "stretch 7: {meta} is needed and the protection domain holds {read}; a holder of meta \
             on the stretch can grant {meta}"
        );
        assert!(guest.change_of(&mut owner, 7, Rights::NONE).is_err());
        assert_eq!(
            (guest.rights(7), owner.rights(7)),
            (Rights::READ, Rights::ALL)
        );
    }

    #[test]
    fn meta_given_up_is_gone_for_good() {
        let mut owner = ProtectionDomain::new();
        owner.own(7);
        assert_eq!(
            owner.change(7, Rights::READ | Rights::WRITE),
            Ok(Rights::ALL)
        );
        assert!(owner.change(7, Rights::ALL).is_err());
    }

    #[test]
    fn rights_read_as_sets() {
        assert_eq!(Rights::NONE.to_string(), "{}");
        assert_eq!((Rights::READ | Rights::META).to_string(), "{read, meta}");
        assert_eq!(Rights::ALL.to_string(), "{read, write, execute, meta}");
    }

    proptest! {
        #[test]
        fn a_check_passes_exactly_for_subsets_of_what_is_held(held in 0u8..16, needed in 0u8..16) {
            let mut domain = ProtectionDomain::new();
            domain.own(1);
            domain.change(1, Rights(held)).unwrap();
            let subset = (0..4).all(|bit| needed & 1 << bit == 0 || held & 1 << bit != 0);
            prop_assert_eq!(domain.check(1, Rights(needed)).is_ok(), subset);
        }
    }
}
