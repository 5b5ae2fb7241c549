//! Sizes and lengths of time as users write and read them. All units of sizes are powers of 1024.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes. Displays exactly, in the largest unit that divides it, as it can be
/// parsed again: `64MiB`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The size of a number of frames or pages.
    pub fn of_pages(pages: u32) -> Self {
        Self(u64::from(pages) * crate::PAGE as u64)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0;
        let mut unit = 0;
        while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < UNITS.len() {
            value /= 1024;
            unit += 1;
        }
        write!(f, "{value}{}", UNITS[unit])
    }
}

/// Formats bytes for people, rounded to a tenth of a unit: `64.3 MiB`. It does not parse again.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// Why a text is not a size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// Not a whole number with a unit.
    #[error(
        "{0:?} is not a size: write a whole number and a unit, as in 64M, 64MiB or 2G (units of 1024)"
    )]
    Invalid(String),
    /// More than 64 bits hold.
    #[error("a size of {0} is too large: at most {max} bytes", max = u64::MAX)]
    TooLarge(String),
}

impl FromStr for Bytes {
    type Err = SizeError;

    /// Parses `64M`, `64MiB`, `64MB`, `65536`.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let invalid = || SizeError::Invalid(text.to_owned());
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(invalid());
        }
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(invalid()),
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .map(Self)
            .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
    }
}

/// A length of time. Displays in the largest unit that divides it, as it can be parsed again: `25ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        for (unit, name) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
            if ns >= unit && ns.is_multiple_of(unit) {
                return write!(f, "{}{name}", ns / unit);
            }
        }
        write!(f, "{ns}ns")
    }
}

/// The text is not a length of time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a length of time: a whole number and a unit, 500us, 25ms, 1s or 10min")]
pub struct TimeError(String);

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        parse_time(text).map(Self)
    }
}

/// Parses a length of time.
pub fn parse_time(text: &str) -> Result<Duration, TimeError> {
    let invalid = || TimeError(text.to_owned());
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(invalid)?;
    let number: u64 = text[..digits].parse().map_err(|_| invalid())?;
    let unit = match &text[digits..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        _ => return Err(invalid()),
    };
    number
        .checked_mul(unit)
        .map(Duration::from_nanos)
        .ok_or_else(invalid)
}

/// Configuration files have sizes and times as text.
macro_rules! deserialize_from_text {
    ($($type:ty),*) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
deserialize_from_text!(Bytes, Time);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_parse_in_all_spellings() {
        for text in ["64M", "64MB", "64MiB", "64mib", "65536k", "67108864"] {
            assert_eq!(text.parse(), Ok(Bytes(64 << 20)), "{text}");
        }
        for text in ["", "M", "1.5G", "-1", "64X"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(error, SizeError::Invalid(text.to_owned()));
        }
        let error = "99999999999999T".parse::<Bytes>().unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }

    #[test]
    fn sizes_for_people_are_rounded_to_a_tenth_of_a_unit() {
        let cases = [
            (0, "0 B"),
            (4096, "4 KiB"),
            (64 << 20, "64 MiB"),
            ((64 << 20) + 300_000, "64.3 MiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn a_size_parses_as_it_is_displayed(number: u64, shift in 0u32..50) {
            let bytes = Bytes(number >> shift << shift);
            prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
        }
    }
}
