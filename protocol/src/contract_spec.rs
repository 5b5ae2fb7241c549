//! The terms of a contract with the daemon, and their text form.
//!
//! From *Self-Paging in the Nemesis Operating System*, sections 6.2 and 6.7: frames {g, x},
//! and the disk's (p, s, x, l). `512M+128M` is 512 MiB guaranteed and 128 MiB more while
//! no other tenant needs them: the paper's x is the sum. `25ms/250ms,extra,laxity=10ms` is 25 ms
//! of the disk in every 250 ms, slack time too, and a laxity of 10 ms: so long the disk waits for a
//! client that has nothing to submit yet.

use disk::atropos::DiskContract;
use disk::time::Nanos;
use frames::Contract;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use wired::{Bytes, PAGE, Time, TimeError, parse_time};

/// Default laxity, for a client whose contract names none: longer than a program that works through its
/// pages takes from one fault to the next, and no more than some reads of a disk that does not seek.
pub const LAXITY: Duration = Duration::from_micros(500);
/// Shortest period: below it a disk's single transactions are longer than slices.
const SHORTEST: Duration = Duration::from_millis(1);
/// Longest period: a newcomer may wait for one.
const LONGEST: Duration = Duration::from_secs(60);

/// Why a text is not a valid contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not a length of time.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// Not a share of a disk.
    #[error(
        "`{0}` is not a share of a disk: SLICE/PERIOD[,extra][,laxity=TIME], as in 25ms/250ms,laxity=10ms"
    )]
    Disk(String),
    /// A slice that does not fit its period.
    #[error(
        "a slice of {} in a period of {} cannot be: it needs 0 < slice <= period, and a period of {} to {}",
        Time(*slice), Time(*period), Time(SHORTEST), Time(LONGEST)
    )]
    Slice {
        /// As requested.
        slice: Duration,
        /// As requested.
        period: Duration,
    },
    /// A laxity longer than the period.
    #[error("a laxity of {} is longer than the period of {}", Time(*laxity), Time(*period))]
    Laxity {
        /// As requested.
        laxity: Duration,
        /// As requested.
        period: Duration,
    },
    /// Not frames.
    #[error("`{text}` is not an amount of frames: SIZE or SIZE+EXTRA, as in 512M+128M ({why})")]
    Frames {
        /// The text.
        text: String,
        /// The reason.
        why: String,
    },
}

/// Frames: g guaranteed, x at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSpec {
    /// Guaranteed.
    #[serde(rename = "guaranteed")]
    pub g: u32,
    /// The most that may be owned.
    #[serde(rename = "most")]
    pub x: u32,
}

impl FromStr for FrameSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let fail = |why: String| SpecError::Frames {
            text: text.to_owned(),
            why,
        };
        let frames = |part: &str| -> Result<u32, SpecError> {
            let bytes = part
                .parse::<Bytes>()
                .map_err(|why| fail(why.to_string()))?
                .0;
            let page = PAGE as u64;
            match u32::try_from(bytes / page) {
                _ if !bytes.is_multiple_of(page) => {
                    let hint = match part.bytes().all(|byte| byte.is_ascii_digit()) {
                        true => format!("; {part} with no unit is bytes: {part}M?"),
                        false => String::new(),
                    };
                    Err(fail(format!(
                        "not a whole number of frames of {page} bytes{hint}"
                    )))
                }
                Ok(count) if count <= frames::Frame::MAX => Ok(count),
                _ => Err(fail(format!(
                    "more than the {} a contract can hold",
                    Bytes(u64::from(frames::Frame::MAX) * page)
                ))),
            }
        };
        let (g, extra) = match text.split_once('+') {
            Some((g, extra)) => (frames(g)?, frames(extra)?),
            None => (frames(text)?, 0),
        };
        let x = g
            .checked_add(extra)
            .filter(|x| *x <= frames::Frame::MAX)
            .ok_or_else(|| fail("more than a contract can hold".into()))?;
        Ok(Self { g, x })
    }
}

impl fmt::Display for FrameSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |frames: u32| Bytes(u64::from(frames) * PAGE as u64);
        match self.x - self.g.min(self.x) {
            0 => write!(f, "{}", bytes(self.g)),
            extra => write!(f, "{}+{}", bytes(self.g), bytes(extra)),
        }
    }
}

impl From<FrameSpec> for Contract {
    fn from(terms: FrameSpec) -> Self {
        Self {
            g: terms.g,
            x: terms.x,
        }
    }
}

impl From<Contract> for FrameSpec {
    fn from(contract: Contract) -> Self {
        Self {
            g: contract.g,
            x: contract.x,
        }
    }
}

/// Particular frames, of the kinds that Linux lets a process choose (section 6.2: "frames within a special
/// region").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FramePlacement {
    /// Huge pages, of 2 MiB each.
    Huge,
    /// The frames of one NUMA node.
    Node(u32),
}

/// The disk: (p, s, x, l).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// Disk time in each period.
    pub slice: Duration,
    /// The period in which the slice is granted once.
    pub period: Duration,
    /// True if the client may use slack time.
    pub extra: bool,
    /// How long the disk waits for a client that has no request pending.
    pub laxity: Duration,
}

impl DiskSpec {
    /// The share of the disk, s/p.
    pub fn share(&self) -> f64 {
        self.slice.as_secs_f64() / self.period.as_secs_f64()
    }

    /// Rejects terms that no schedule can keep.
    pub fn check(&self) -> Result<(), SpecError> {
        let Self {
            slice,
            period,
            laxity,
            ..
        } = *self;
        if slice.is_zero() || slice > period || !(SHORTEST..=LONGEST).contains(&period) {
            return Err(SpecError::Slice { slice, period });
        }
        match laxity > period {
            true => Err(SpecError::Laxity { laxity, period }),
            false => Ok(()),
        }
    }
}

impl FromStr for DiskSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let change: DiskChange = text.parse()?;
        let defaults = Self {
            slice: change.slice,
            period: change.period,
            extra: false,
            laxity: LAXITY,
        };
        let terms = change.applied_to(defaults);
        terms.check().map(|()| terms)
    }
}

impl From<DiskSpec> for DiskContract {
    fn from(terms: DiskSpec) -> Self {
        let nanos = |time: Duration| Nanos(time.as_nanos() as u64);
        Self {
            period: nanos(terms.period),
            slice: nanos(terms.slice),
            extra: terms.extra,
            laxity: nanos(terms.laxity),
        }
    }
}

/// A change of the disk's terms; a term that is `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskChange {
    /// Disk time in each period.
    pub slice: Duration,
    /// The period in which the slice is granted once.
    pub period: Duration,
    /// True if the client may use slack time.
    pub extra: Option<bool>,
    /// How long the disk waits for a client that has no request pending.
    pub laxity: Option<Duration>,
}

impl DiskChange {
    /// Returns the terms after the change. A laxity that is not changed is cut to the new period.
    pub fn applied_to(self, terms: DiskSpec) -> DiskSpec {
        DiskSpec {
            slice: self.slice,
            period: self.period,
            extra: self.extra.unwrap_or(terms.extra),
            laxity: self.laxity.unwrap_or(terms.laxity.min(self.period)),
        }
    }
}

impl FromStr for DiskChange {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = || SpecError::Disk(text.to_owned());
        let mut parts = text.split(',');
        let (slice, period) = parts
            .next()
            .and_then(|share| share.split_once('/'))
            .ok_or_else(wrong)?;
        let mut change = Self {
            slice: parse_time(slice)?,
            period: parse_time(period)?,
            extra: None,
            laxity: None,
        };
        for part in parts {
            // Each option occurs at most once.
            let was_set = match part.split_once('=') {
                None if part == "extra" => change.extra.replace(true).is_some(),
                None if part == "noextra" => change.extra.replace(false).is_some(),
                Some(("laxity", time)) => change.laxity.replace(parse_time(time)?).is_some(),
                _ => true,
            };
            if was_set {
                return Err(wrong());
            }
        }
        Ok(change)
    }
}

impl fmt::Display for DiskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Time(self.slice), Time(self.period))?;
        if self.extra {
            write!(f, ",extra")?;
        }
        write!(f, ",laxity={}", Time(self.laxity))
    }
}

/// A whole contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContractSpec {
    /// Frames.
    pub frames: FrameSpec,
    /// The disk.
    pub disk: DiskSpec,
    /// Bytes of the swap file.
    pub swap: u64,
}

impl fmt::Display for ContractSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (frames, disk) = (self.frames, self.disk);
        write!(f, "frames {frames}, disk {disk}, swap {}", Bytes(self.swap))
    }
}

/// Deserializes a value from its text form, for configuration files.
pub fn from_text<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr,
    T::Err: fmt::Display,
    D: serde::Deserializer<'de>,
{
    let text = String::deserialize(from)?;
    text.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_is_read_as_it_is_printed() {
        for text in ["25ms/250ms,laxity=10ms", "1ms/2ms,extra,laxity=500us"] {
            assert_eq!(text.parse::<DiskSpec>().unwrap().to_string(), text);
        }
        for text in ["512MiB", "512MiB+128MiB", "64KiB+4KiB"] {
            assert_eq!(text.parse::<FrameSpec>().unwrap().to_string(), text);
        }
        assert_eq!("1s/1s".parse::<DiskSpec>().unwrap().laxity, LAXITY);
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let changed = |from: &str, to: &str| {
            let to: DiskChange = to.parse().unwrap();
            to.applied_to(from.parse().unwrap()).to_string()
        };
        let from = "25ms/250ms,extra,laxity=7ms";
        assert_eq!(changed(from, "75ms/250ms"), "75ms/250ms,extra,laxity=7ms");
        assert_eq!(changed(from, "75ms/250ms,noextra"), "75ms/250ms,laxity=7ms");
        assert_eq!(
            changed(from, "1ms/5ms,laxity=2ms"),
            "1ms/5ms,extra,laxity=2ms"
        );
        assert_eq!(changed(from, "1ms/5ms"), "1ms/5ms,extra,laxity=5ms");
        assert_eq!(
            changed("1ms/5ms", "1ms/9ms,extra"),
            "1ms/9ms,extra,laxity=500us"
        );
    }

    #[test]
    fn terms_that_no_schedule_can_keep_are_refused_with_the_reason() {
        let error = |text: &str| text.parse::<DiskSpec>().unwrap_err().to_string();
        assert!(error("300ms/250ms").contains("a slice of 300ms in a period of 250ms"));
        assert!(error("0ms/250ms").contains("0 < slice"));
        assert!(error("1us/10us").contains("a period of 1ms to 60s"));
        assert!(error("25ms").contains("SLICE/PERIOD"));
        assert!(error("25/250").contains("`25` is not a length of time"));
        assert!(error("1ms/2ms,laxity=9ms").contains("longer than the period"));
        for text in [
            "1ms/2ms,lax",
            "1ms/2ms,extra,extra",
            "1ms/2ms,extra,noextra",
        ] {
            assert!(error(text).contains("[,extra]"), "{text}");
        }
        let error = |text: &str| text.parse::<FrameSpec>().unwrap_err().to_string();
        assert!(error("5000").contains("whole number of frames"));
        assert!(error("64M+").contains("SIZE+EXTRA"));
    }
}
