//! What the descriptors of a service are called in systemd's store. A client's begin with its slot, so that one prefix
//! removes them.

use crate::keeper_link::{ClientSlot, KeptPart};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// What a name tells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StoredName {
    /// The socket for hand-offs.
    Handoffs,
    /// The socket of `selfpage vm`.
    Control,
    /// The record of all managers.
    Record,
    /// The file of the shared cache.
    Cache,
    /// A client's connection.
    Connection(ClientSlot),
    /// One of a client's descriptors, and which of its kind.
    Part(ClientSlot, KeptPart, u16),
}

const OF_THE_SERVICE: [(&str, StoredName); 4] = [
    ("handoffs", StoredName::Handoffs),
    ("control", StoredName::Control),
    ("manager", StoredName::Record),
    ("cache", StoredName::Cache),
];

/// Letters of a client's descriptors: short, since all names have to fit into one variable ([`host::fd_store`]).
const CONNECTION: &str = "c";
const PARTS: [(&str, KeptPart); 6] = [
    ("u", KeptPart::Userfault),
    ("r", KeptPart::Record),
    ("m", KeptPart::Memory),
    ("p", KeptPart::Process),
    ("s", KeptPart::Store),
    ("k", KeptPart::Child),
];

/// What all names of a client's begin with, and no other's.
pub fn prefix(slot: ClientSlot) -> String {
    format!("{slot}.")
}

impl StoredName {
    /// The client whose descriptor it is.
    pub fn slot(self) -> Option<ClientSlot> {
        match self {
            Self::Connection(slot) | Self::Part(slot, ..) => Some(slot),
            _ => None,
        }
    }
}

impl Display for StoredName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(slot) => write!(f, "{}{CONNECTION}", prefix(*slot)),
            Self::Part(slot, part, index) => {
                let letter = PARTS.iter().find(|(_, it)| it == part);
                let letter = letter.map_or("", |(letter, _)| *letter);
                write!(f, "{}{letter}{index}", prefix(*slot))
            }
            other => {
                let name = OF_THE_SERVICE.iter().find(|(_, it)| it == other);
                f.write_str(name.map_or("", |(name, _)| *name))
            }
        }
    }
}

impl FromStr for StoredName {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        if let Some((_, found)) = OF_THE_SERVICE.iter().find(|(it, _)| *it == name) {
            return Ok(*found);
        }
        let (slot, what) = name.split_once('.').ok_or(())?;
        let slot = slot.parse().map_err(drop)?;
        let found = match what {
            CONNECTION => Self::Connection(slot),
            _ => {
                let kinds = PARTS.iter();
                let mut parts =
                    kinds.filter_map(|(letter, part)| Some((what.strip_prefix(letter)?, *part)));
                let (index, part) = parts.next().ok_or(())?;
                Self::Part(slot, part, index.parse().map_err(drop)?)
            }
        };
        // One descriptor has one name: "7.u0" and not "+7.u00".
        (found.to_string() == name).then_some(found).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_as_it_was_written_and_no_other_is() {
        let mut names: Vec<StoredName> = OF_THE_SERVICE.iter().map(|(_, it)| *it).collect();
        for slot in [0, 7, ClientSlot::MAX] {
            names.push(StoredName::Connection(slot));
            let part = |(_, part): &(&str, KeptPart)| StoredName::Part(slot, *part, 11);
            names.extend(PARTS.iter().map(part));
        }
        for name in names {
            let text = name.to_string();
            assert!(text.len() <= 15, "{text}");
            assert_eq!(text.parse(), Ok(name), "{text}");
        }
        for other in [
            "", "stored", "7", "7.", "7.x0", "7.u", "+7.c", "7.u00", "-1.c", "7.c0", ".c",
        ] {
            assert_eq!(other.parse::<StoredName>(), Err(()), "{other}");
        }
    }
}
