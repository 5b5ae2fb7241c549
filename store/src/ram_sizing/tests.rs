//! The policy over a model of both tiers: resident pages by least recent use, compressed ones in
//! the order of their eviction, the rest on disk; all pages are written to.

use super::*;
use fastrand::Rng;
use std::collections::{BTreeMap, HashMap};

const FRAMES: u64 = 2048;
/// Frames in a segment of the model.
const SEGMENT: u64 = 8;
const MOST: u32 = (FRAMES / 2 / SEGMENT) as u32;

/// Where pages are, by the time of their last move.
#[derive(Default)]
struct Tier {
    by_age: BTreeMap<u64, u64>,
    of: HashMap<u64, u64>,
}

impl Tier {
    fn insert(&mut self, page: u64, now: u64) {
        self.by_age.insert(now, page);
        self.of.insert(page, now);
    }

    fn remove(&mut self, page: u64) -> Option<u64> {
        let age = self.of.remove(&page)?;
        self.by_age.remove(&age);
        Some(age)
    }

    fn pop(&mut self) -> Option<u64> {
        let (_, page) = self.by_age.pop_first()?;
        self.of.remove(&page);
        Some(page)
    }

    fn rank(&self, age: u64) -> (usize, usize) {
        let eighth = self.by_age.len() / 8;
        let older = self.by_age.range(..age).take(eighth + 1).count();
        let younger = self.by_age.range(age + 1..).take(eighth + 1).count();
        (older, younger)
    }
}

struct Model {
    resident: Tier,
    compressed: Tier,
    /// Tenths; 10 for pages that do not compress.
    ratio: u64,
    segments: u32,
    now: u64,
    seen: RamUse,
    /// In units of a hit in compressed RAM.
    cost: u64,
}

impl Model {
    fn new(ratio: u64, segments: u32) -> Self {
        Self {
            resident: Tier::default(),
            compressed: Tier::default(),
            ratio,
            segments,
            now: 0,
            seen: RamUse::default(),
            cost: 0,
        }
    }

    fn access(&mut self, page: u64) {
        self.now += 1;
        if self.resident.remove(page).is_none() {
            if let Some(&age) = self.compressed.of.get(&page) {
                let (older, younger) = self.compressed.rank(age);
                let eighth = self.compressed.by_age.len() / 8;
                self.seen.read_old += u64::from(older < eighth);
                self.seen.read_young += u64::from(younger < eighth);
                self.compressed.remove(page);
                self.cost += 1;
            } else {
                self.seen.read_disk += 1;
                self.cost += 1 + DISK_COST;
            }
        }
        self.resident.insert(page, self.now);
        self.evict();
    }

    fn evict(&mut self) {
        let compressed = u64::from(self.segments) * SEGMENT;
        while self.resident.of.len() as u64 > FRAMES - compressed {
            self.now += 1;
            let page = self.resident.pop().unwrap();
            self.seen.written += 1;
            if self.ratio > 10 && compressed > 0 {
                self.seen.stored += 1;
                self.seen.stored_bytes += PAGE as u64 * 10 / self.ratio;
                self.compressed.insert(page, self.now);
            }
        }
        while self.compressed.of.len() as u64 * 10 > compressed * self.ratio {
            self.compressed.pop();
        }
    }
}

type Workload = Box<dyn FnMut(&mut Rng) -> u64>;

fn uniform(pages: u64) -> Workload {
    Box::new(move |rng| rng.u64(..pages))
}

/// Ranks by a power law, scattered: a few pages get most accesses.
fn zipf(pages: u64) -> Workload {
    Box::new(move |rng| (pages as f64).powf(rng.f64()) as u64 - 1)
}

fn cycle(pages: u64) -> Workload {
    let mut at = 0;
    Box::new(move |_| {
        at = (at + 1) % pages;
        at
    })
}

const WARM: u64 = 150_000;
const MEASURED: u64 = 50_000;

/// Cost of an access in thousandths, after warming up; with the policy or a fixed split. The last
/// target comes with it.
fn run(mut next: Workload, ratio: u64, fixed: Option<u32>) -> (u64, u32) {
    let mut rng = Rng::with_seed(7);
    let mut policy = RamSizing::new(MOST);
    let mut model = Model::new(ratio, fixed.unwrap_or(policy.target()));
    for at in 0..WARM + MEASURED {
        if at == WARM {
            model.cost = 0;
        }
        model.access(next(&mut rng));
        if fixed.is_none() && at % 64 == 0 {
            model.segments = policy.update(model.seen, model.segments);
        }
    }
    (model.cost * 1000 / MEASURED, model.segments)
}

/// The policy's cost is within `slack` percent, and a little, of the best fixed split's.
fn is_near_the_best(workload: fn() -> Workload, ratio: u64, slack: u64) {
    let (own, target) = run(workload(), ratio, None);
    let splits = (0..=8).map(|part| MOST * part / 8);
    let all: Vec<_> = splits
        .map(|split| (run(workload(), ratio, Some(split)).0, split))
        .collect();
    let best = *all.iter().min().unwrap();
    assert!(
        own * 100 <= best.0 * (100 + slack) + 1000,
        "{own} with {target} segments; the best of {all:?} is {best:?}"
    );
}

#[test]
fn uniform_accesses_converge_to_the_best_split() {
    is_near_the_best(|| uniform(3 * FRAMES), 30, 5);
    // The best split is where all just fits, at an edge that the policy keeps a few steps from.
    is_near_the_best(|| uniform(FRAMES * 5 / 4), 30, 20);
    is_near_the_best(|| uniform(3 * FRAMES), 15, 5);
}

#[test]
fn skewed_accesses_converge_to_the_best_split() {
    is_near_the_best(|| zipf(4 * FRAMES), 30, 8);
    is_near_the_best(|| zipf(16 * FRAMES), 20, 8);
    is_near_the_best(|| zipf(4 * FRAMES), 13, 8);
}

#[test]
fn a_loop_that_fits_compressed_comes_to_fit() {
    is_near_the_best(|| cycle(FRAMES * 3 / 2), 30, 8);
}

#[test]
fn a_loop_that_never_fits_does_not_get_worse() {
    is_near_the_best(|| cycle(4 * FRAMES), 20, 2);
}

#[test]
fn pages_that_do_not_compress_leave_all_frames_resident() {
    let (own, target) = run(uniform(2 * FRAMES), 10, None);
    assert!(target <= LEAST, "{target} segments");
    let none = run(uniform(2 * FRAMES), 10, Some(0)).0;
    assert!(own * 100 <= none * 102, "{own} and {none}");
}

#[test]
fn a_program_that_begins_to_compress_gets_compressed_ram_again() {
    let mut policy = RamSizing::new(MOST);
    let mut model = Model::new(10, policy.target());
    let mut next = uniform(2 * FRAMES);
    let mut rng = Rng::with_seed(1);
    for at in 0..600_000 {
        model.ratio = if at < 100_000 { 10 } else { 30 };
        model.access(next(&mut rng));
        model.segments = policy.update(model.seen, model.segments);
        if at == 99_999 {
            assert!(model.segments <= LEAST);
        }
    }
    assert!(model.segments > MOST / 2, "{} segments", model.segments);
}

#[test]
fn a_contract_too_small_for_segments_has_none() {
    assert_eq!(RamSizing::new(LEAST - 1).target(), 0);
}

#[test]
fn hits_before_the_ratio_is_known_again_change_nothing() {
    let mut sizing = RamSizing::new(MOST);
    // Whole pages, moved back from a full disk, take more than they hold.
    let mut seen = RamUse {
        written: MOVES,
        stored: MOVES,
        stored_bytes: MOVES * (PAGE as u64 + 8),
        ..RamUse::default()
    };
    assert_eq!(sizing.update(seen, MOST), 0);
    seen.written += LONGEST_PAUSE * MOVES;
    let target = sizing.update(seen, MOST);
    assert!(target > 0, "it is tried again");
    (seen.read_old, seen.read_disk) = (HITS, 1);
    assert_eq!(sizing.update(seen, MOST), target);
}
