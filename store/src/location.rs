//! A page's location in one word, so that it moves by one compare-and-swap.

use crate::PageLocation;

/// The word of a location: 0 is nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// Not yet stored, or freed.
    Nowhere,
    /// In the arena: segment, offset in bytes (a multiple of 8), length of the contents.
    Ram { segment: u32, offset: u32, len: u32 },
    /// In the swap file.
    Disk { blok: u32 },
}

const RAM: u64 = 1 << 62;
const DISK: u64 = 2 << 62;
const LEN_BITS: u32 = 13;
const OFFSET_BITS: u32 = 15;

impl Location {
    pub fn encode(self) -> u64 {
        match self {
            Location::Nowhere => 0,
            Location::Ram {
                segment,
                offset,
                len,
            } => {
                RAM | u64::from(segment) << (LEN_BITS + OFFSET_BITS)
                    | u64::from(offset / 8) << LEN_BITS
                    | u64::from(len)
            }
            Location::Disk { blok } => DISK | u64::from(blok),
        }
    }

    pub fn decode(word: u64) -> Self {
        match word >> 62 {
            1 => Location::Ram {
                segment: (word >> (LEN_BITS + OFFSET_BITS)) as u32,
                offset: (word >> LEN_BITS & ((1 << OFFSET_BITS) - 1)) as u32 * 8,
                len: (word & ((1 << LEN_BITS) - 1)) as u32,
            },
            2 => Location::Disk { blok: word as u32 },
            _ => Location::Nowhere,
        }
    }

    /// The location for messages.
    pub fn place(self) -> PageLocation {
        match self {
            Location::Nowhere => PageLocation::Filled,
            Location::Ram {
                segment, offset, ..
            } => PageLocation::Ram { segment, offset },
            Location::Disk { blok } => PageLocation::Disk { blok },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_location_survives_encoding(
            segment in 0u32..1 << 24, offset in 0u32..1 << 15, len in 0u32..=4096, blok: u32
        ) {
            for location in [Location::Ram { segment, offset: offset * 8, len }, Location::Disk { blok }] {
                prop_assert_eq!(Location::decode(location.encode()), location);
            }
        }
    }
}
