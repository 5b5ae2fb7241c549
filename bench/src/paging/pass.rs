//! The passes: each is one way of going through the memory.

use crate::prelude::*;

/// A pass over the memory. What is in brackets is how many accesses it makes. In the order they run:
/// reading before writing, so that what is evicted while reading is clean in every arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// Writes every page in order, for the first time [every page once]
    Fill,
    /// Reads every page in order, all of it [every page once]
    SequentialRead,
    /// Reads every 16th page, then those after them, and so on [the number asked for]
    StridedRead,
    /// Reads pages in no order [the number asked for]
    RandomRead,
    /// Reads and changes pages in no order [the number asked for]
    RandomRmw,
    /// Reads, and for 5 % of accesses changes, pages by zipf 0.99 [the number asked for]
    Zipf,
    /// Reads and changes every page in order [every page once]
    SequentialRmw,
}

impl Pass {
    /// Returns true if every page is visited once, by threads that have a block of them each.
    pub fn in_order(self) -> bool {
        matches!(
            self,
            Self::Fill | Self::SequentialRead | Self::SequentialRmw
        )
    }

    /// Returns true if as many accesses as there are frames come before the clock starts: what
    /// the pass before left in memory, and whether it was dirty, is then gone. A pass in
    /// order replaces the memory several times over by itself.
    pub fn warms_up(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomRmw | Self::Zipf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_called_the_same_everywhere() {
        for pass in Pass::value_variants() {
            let shown = serde_json::to_value(pass).unwrap();
            assert_eq!(shown, pass.name());
            assert_eq!(Pass::from_str(&pass.name(), false), Ok(*pass));
        }
    }
}
