//! Replacement against a simulated domain: pages, frames, a standby list of slots.

use super::{Key, Replacement, ScanResistant};
use fastrand::Rng;
use std::collections::VecDeque;

const RANGE: usize = 64;
const RANGES: usize = 256;
const PAGES: usize = RANGE * RANGES;
const FRAMES: usize = PAGES / 8;
/// Slots of the standby list.
const SLOTS: usize = 4;

/// First in, first out, for comparison.
#[derive(Default)]
struct Fifo(VecDeque<Key>);

impl Replacement for Fifo {
    fn filled(&mut self, range: Key) -> bool {
        if !self.0.contains(&range) {
            self.0.push_back(range);
        }
        true
    }
    fn refaulted(&mut self, _: Key) {}
    fn emptied(&mut self, range: Key) {
        self.0.retain(|key| *key != range);
    }
    fn victim_by(&mut self, resident: &mut dyn FnMut(Key) -> u32) -> Option<Key> {
        std::iter::from_fn(|| self.0.pop_front()).find(|key| resident(*key) > 0)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Page {
    Out,
    In,
    /// In the slot with this number.
    Standby(usize),
}

/// A domain that pages by a replacement.
struct SimulatedDomain<R> {
    replacement: R,
    pages: Vec<Page>,
    free: usize,
    /// Slots in use, oldest first: number, and frames it holds.
    slots: VecDeque<(usize, usize, Vec<usize>)>,
    next_slot: usize,
}

impl<R: Replacement> SimulatedDomain<R> {
    fn new(replacement: R) -> Self {
        let pages = vec![Page::Out; PAGES];
        Self {
            replacement,
            pages,
            free: FRAMES,
            slots: VecDeque::new(),
            next_slot: 0,
        }
    }

    /// Whether the page was in memory.
    fn access(&mut self, page: usize) -> bool {
        let was = self.pages[page];
        if was == Page::In {
            return true;
        }
        while self.free == 0 {
            self.evict();
        }
        self.free -= 1;
        let standby = matches!(self.pages[page], Page::Standby(_));
        self.pages[page] = Page::In;
        let range = Key::new(1, page / RANGE);
        assert!(self.replacement.filled(range));
        if standby {
            self.replacement.refaulted(range);
        }
        was != Page::Out
    }

    fn evict(&mut self) {
        if self.slots.len() < SLOTS {
            let pages = &self.pages;
            let resident = |key: Key| {
                let range = &pages[key.unit() * RANGE..][..RANGE];
                range.iter().filter(|page| **page == Page::In).count() as u32
            };
            let victim = self
                .replacement
                .victim_by(&mut { resident })
                .expect("a victim");
            let first = victim.unit() * RANGE;
            let taken: Vec<usize> = (first..first + RANGE)
                .filter(|page| self.pages[*page] == Page::In)
                .collect();
            assert!(!taken.is_empty());
            taken
                .iter()
                .for_each(|page| self.pages[*page] = Page::Standby(self.next_slot));
            self.slots.push_back((self.next_slot, taken.len(), taken));
            self.next_slot += 1;
        } else {
            let (slot, frames, pages) = self.slots.pop_front().expect("a slot");
            let gone = |page: &&usize| self.pages[**page] == Page::Standby(slot);
            let gone: Vec<usize> = pages.iter().filter(gone).copied().collect();
            gone.iter().for_each(|page| self.pages[*page] = Page::Out);
            self.free += frames;
        }
    }
}

/// Zipf with exponent 1 over half of the ranges, by rank of range, uniform within one.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(ranks: usize) -> Self {
        let mut sum = 0.0;
        Self(
            (1..=ranks)
                .map(|rank| {
                    sum += 1.0 / rank as f64;
                    sum
                })
                .collect(),
        )
    }

    fn page(&self, random: &mut Rng) -> usize {
        let whole = self.0.last().copied().unwrap_or(1.0);
        let at = random.f64() * whole;
        let rank = self.0.partition_point(|sum| *sum < at);
        // Ranks are spread over the ranges, not next to each other.
        rank * 37 % (RANGES / 2) * RANGE + random.usize(..RANGE)
    }
}

/// Share of the zipf accesses that found their page in memory, with `scan` pages of a
/// scan over the other half between each two of them.
fn hit_rate(replacement: impl Replacement, scan: usize) -> f64 {
    let zipf = Zipf::new(RANGES / 2);
    let mut random = Rng::with_seed(0x5eed_5eed);
    let mut domain = SimulatedDomain::new(replacement);
    let (mut hits, mut scanned) = (0, 0);
    const WARM: usize = 50_000;
    const COUNT: usize = 200_000;
    for n in 0..WARM + COUNT {
        let hit = domain.access(zipf.page(&mut random));
        hits += usize::from(hit && n >= WARM);
        for _ in 0..scan {
            domain.access(PAGES / 2 + scanned % (PAGES / 2));
            scanned += 1;
        }
    }
    hits as f64 / COUNT as f64
}

#[test]
fn a_scan_beside_it_leaves_a_working_set_nine_tenths_of_its_hits() {
    let alone = hit_rate(ScanResistant::new(FRAMES), 0);
    let beside = hit_rate(ScanResistant::new(FRAMES), 1);
    let fifo_alone = hit_rate(Fifo::default(), 0);
    let fifo_beside = hit_rate(Fifo::default(), 1);
    println!(
        "hits: {alone:.3} alone, {beside:.3} with a scan; first in first out {fifo_alone:.3}, {fifo_beside:.3}"
    );
    assert!(beside >= 0.9 * alone, "{beside:.3} of {alone:.3}");
    assert!(
        alone >= 0.98 * fifo_alone,
        "{alone:.3} against {fifo_alone:.3}"
    );
    assert!(beside > fifo_beside, "{beside:.3} against {fifo_beside:.3}");
}
