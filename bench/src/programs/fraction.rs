//! How much memory a program gets, of what it takes alone.

use crate::prelude::*;

/// A part of the memory that a program takes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fraction {
    /// half as much again: what it costs to be able to page
    Fits,
    /// a half
    Half,
    /// a quarter
    Quarter,
    /// an eighth
    Eighth,
}

impl Fraction {
    /// Those that are measured by default.
    pub const USUAL: [Self; 3] = [Self::Half, Self::Quarter, Self::Eighth];

    /// Of so many bytes.
    pub fn of(self, bytes: u64) -> u64 {
        let part = match self {
            Self::Fits => bytes * 3 / 2,
            Self::Half => bytes / 2,
            Self::Quarter => bytes / 4,
            Self::Eighth => bytes / 8,
        };
        part.next_multiple_of(PAGE as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_of_whole_pages() {
        let pages = PAGE as u64;
        let parts = [16, 7].map(|n| {
            Fraction::value_variants()
                .iter()
                .map(move |f| f.of(n * pages))
        });
        let [even, odd] = parts.map(|all| all.map(|bytes| bytes / pages).collect::<Vec<_>>());
        assert_eq!(even, [24, 8, 4, 2]);
        assert_eq!(odd, [11, 4, 2, 1]);
    }
}
