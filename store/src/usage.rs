//! Figures of a store: one list, from which the struct, `--stats` and data are made.

macro_rules! usage {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Contents and totals of a store.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Usage { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl Usage {
            /// Every figure, in the order in which they are shown.
            pub const FIGURES: &'static [UsageFigure] = &[$(UsageFigure {
                key: stringify!($name),
                description: concat!($($doc),+).trim_ascii(),
                value: |usage| usage.$name,
            },)+];
        }
    };
}

/// A figure of [`Usage`].
pub struct UsageFigure {
    /// Its name in text and data.
    pub key: &'static str,
    /// What it counts, in a few words.
    pub description: &'static str,
    /// Reads it.
    pub value: fn(&Usage) -> u64,
}

usage! {
    /// Pages in compressed RAM.
    pages_ram,
    /// Pages of one repeated value, which take no space.
    pages_filled,
    /// Pages on disk.
    pages_disk,
    /// Compressed bytes of the pages in RAM.
    ram_compressed,
    /// Bytes of the arena in use, dead space included.
    ram_used,
    /// Bytes of the arena; 0 without one.
    ram_limit,
    /// Bytes of bloks in use.
    disk_used,
    /// Bytes of the swap file; 0 without one.
    disk_limit,
    /// Bytes of the tables in use, as far as the page index grew.
    tables,
    /// Holds, over all holders: pages times the processes that hold them.
    holds,
    /// Pages written so far.
    written,
    /// Pages read so far, including read-ahead.
    read,
    /// Pages among those read from disk.
    read_disk,
    /// Pages moved from RAM to disk.
    demoted,
    /// Pages moved within RAM by compaction.
    compacted,
    /// Checksum mismatches.
    mismatches,
    /// Failed reads and writes of the disk.
    io_errors,
    /// Reads and writes of the disk.
    ios,
    /// Pages put into compressed RAM so far, including whole pages moved back from a full disk.
    to_ram,
    /// Bytes that these pages took there.
    to_ram_bytes,
}

/// What is stored at one moment: cheaper than [`Usage`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Bytes of the arena, dead space included.
    pub ram: u64,
    /// Bytes of the swap file.
    pub disk: u64,
    /// Pages, those of one repeated value and those that are resident, too, included; a channel
    /// may have claimed up to 64 entries more.
    pub pages: u64,
}

impl Occupancy {
    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            ram: self.ram.max(other.ram),
            disk: self.disk.max(other.disk),
            pages: self.pages.max(other.pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_reads_the_field_of_its_name() {
        let usage = Usage {
            pages_ram: 1,
            to_ram_bytes: 2,
            ..Usage::default()
        };
        let of = |key| {
            let mut all = Usage::FIGURES.iter();
            all.find(|figure| figure.key == key)
                .map(|figure| (figure.value)(&usage))
        };
        assert_eq!(of("pages_ram"), Some(1));
        assert_eq!(of("to_ram_bytes"), Some(2));
        assert_eq!(of("holds"), Some(0));
    }

    #[test]
    fn every_figure_says_what_it_counts() {
        for figure in Usage::FIGURES {
            assert!(figure.description.ends_with('.'), "{}", figure.key);
        }
    }
}
