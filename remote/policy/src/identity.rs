//! The names by which hosts, brokers, clients and paging objects are known to each other.
//!
//! From *Adaptive Remote Paging for Mobile Computers* (Schilit and Duchamp), section 3.5: permits
//! die when "the client rebooted", and a new broker takes the place of one that crashed. Rule: a
//! restart is a new incarnation, so no message of an earlier one can be taken for a later one's.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A machine. Each one can be client, paging server and broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(#[serde(with = "exact")] pub u64);

/// One life of a process on a host: it ends with the process or the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// Its host.
    pub host: HostId,
    /// The kernel's boot id.
    #[serde(with = "exact")]
    pub boot: u128,
    /// When the process started, in the kernel's clock ticks since boot.
    pub start_ticks: u64,
}

/// One broker's rule over a server. A server obeys the highest epoch it has been claimed by.
///
/// Epochs are totally ordered, by number first, and no two brokers share one: the incarnation is
/// part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Rises with each takeover and each regeneration.
    pub number: u64,
    /// The broker.
    pub broker: Incarnation,
}

/// A paging object: a range of pages that one client reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// The client that created it.
    pub client: HostId,
    /// The client's number for it, never used twice.
    pub number: u64,
}

/// A client's request for storage. A copy of it that arrives again is the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The client.
    pub client: Incarnation,
    /// The client's number for it, never used twice by an incarnation.
    pub number: u64,
}

/// Which of an object's copies is meant: rises with each copy that is created.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

/// A page's version: the number of its writes, counted by the client.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version(pub u64);

/// A page's number in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageNumber(pub u64);

/// Numbers that are names: text where people and scripts read them, since JSON's readers round
/// numbers above 2^53.
mod exact {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<S: Serializer, T: Display + Serialize>(
        number: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_str(number),
            false => number.serialize(to),
        }
    }

    pub fn deserialize<'a, D: Deserializer<'a>, T>(from: D) -> Result<T, D::Error>
    where
        T: Deserialize<'a> + FromStr,
        T::Err: Display,
    {
        match from.is_human_readable() {
            true => String::deserialize(from)?.parse().map_err(D::Error::custom),
            false => T::deserialize(from),
        }
    }
}

impl Generation {
    /// The generation after it.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Epoch {
    /// The least epoch of `broker` that every server of this epoch obeys.
    pub fn next(self, broker: Incarnation) -> Self {
        Self {
            number: self.number.saturating_add(1),
            broker,
        }
    }
}

impl Incarnation {
    /// Of a process by where, in which boot and when it started.
    pub const fn new(host: HostId, boot: u128, start_ticks: u64) -> Self {
        Self {
            host,
            boot,
            start_ticks,
        }
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", self.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            boot,
            start_ticks,
        } = self;
        write!(f, "{host} (boot {boot:x}, started at tick {start_ticks})")
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.number, self.broker.host)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "paging object {} of {}", self.number, self.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_text_where_scripts_read_them_and_numbers_between_hosts() {
        let life = Incarnation::new(HostId(u64::MAX), u128::MAX, 7);
        let text = serde_json::to_string(&life).unwrap();
        let boot = u128::MAX;
        assert_eq!(
            text,
            format!(
                r#"{{"host":"{}","boot":"{boot}","start_ticks":7}}"#,
                u64::MAX
            )
        );
        assert_eq!(serde_json::from_str::<Incarnation>(&text).unwrap(), life);
        let bytes = postcard::to_allocvec(&life).unwrap();
        assert_eq!(postcard::from_bytes::<Incarnation>(&bytes).unwrap(), life);
    }
}
