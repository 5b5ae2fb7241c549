//! Compaction: dead space in compressed RAM is bounded.

mod common;

use common::{PAGE, Page, Rng, make, page, read, write, write_one};
use proptest::prelude::*;
use store::{Channel, PageHandle, SharedStore, Store};

/// Bytes of a segment of the store in these tests.
const SEGMENT: u64 = 64 << 10;
/// A store of 64 segments.
const CONFIG: &str = "ram:4M";

/// The bound of the module documentation: a quarter of the sealed segments dead, the end of
/// each that the last page did not fit into, and the open and reserve segments.
fn bound(alive: u64, channels: u64) -> u64 {
    alive * 4 / 3 + (channels + 2) * SEGMENT
}

/// Pages that pack to between an eighth and two thirds.
fn packable(seed: u64) -> Page {
    let mut page = page(seed);
    let mut rng = Rng::with_seed(seed + 3);
    let noisy = 512 + rng.usize(..2048);
    page.0.fill(0);
    page.0[..noisy].fill_with(|| rng.u8(..));
    page
}

fn add(channel: &mut dyn Channel, held: &mut Vec<PageHandle>, seed: &mut u64, count: u64) {
    let pages: Vec<Page> = (*seed..*seed + count).map(packable).collect();
    *seed += count;
    held.extend(write(channel, &pages).into_iter().map(Result::unwrap));
}

fn drop_some(store: &SharedStore, held: &mut Vec<PageHandle>, rng: &mut Rng, count: u64) {
    for _ in 0..count.min(held.len() as u64) {
        let handle = held.swap_remove(rng.usize(..held.len()));
        store.discard(0, &[handle]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn dead_space_is_bounded_while_pages_come_and_go(
        rng in any::<u64>(),
        alive in 100u64..1000,
        channels in 1usize..4,
    ) {
        let store = make(CONFIG, 1);
        let mut channels: Vec<_> = (0..channels).map(|_| store.channel(1).unwrap()).collect();
        let (mut held, mut seed, mut rng) = (Vec::new(), 0, Rng::with_seed(rng));
        let turns = channels.len();
        add(&mut *channels[0], &mut held, &mut seed, alive);
        for turn in 0..60 {
            add(&mut *channels[turn % turns], &mut held, &mut seed, 24);
            drop_some(&store, &mut held, &mut rng, 24);
            let usage = store.usage();
            // Later writes compact what the last drops left sparse.
            let alive = usage.ram_compressed + 24 * 4104;
            prop_assert!(
                usage.ram_used <= bound(alive, turns as u64),
                "{} bytes in use for {} alive", usage.ram_used, usage.ram_compressed
            );
        }
    }

    #[test]
    fn a_store_that_lost_most_of_its_pages_gets_dense_again(rng in any::<u64>(), left in 0u64..200) {
        let store = make(CONFIG, 1);
        let mut channel = store.channel(1).unwrap();
        let (mut held, mut seed, mut rng) = (Vec::new(), 0, Rng::with_seed(rng));
        add(&mut *channel, &mut held, &mut seed, 1200);
        drop_some(&store, &mut held, &mut rng, 1200 - left);
        // As many writes as fill the segments in use.
        for _ in 0..80 {
            add(&mut *channel, &mut held, &mut seed, 24);
            drop_some(&store, &mut held, &mut rng, 24);
        }
        let usage = store.usage();
        prop_assert!(
            usage.ram_used <= bound(usage.ram_compressed + 24 * 4104, 1),
            "{} bytes in use for {} alive", usage.ram_used, usage.ram_compressed
        );
    }
}

#[test]
fn a_repeated_value_takes_no_room() {
    let store = make(CONFIG, 1);
    let mut channel = store.channel(1).unwrap();
    let pages = [Page([0; PAGE]), Page([1; PAGE]), Page([0x2a; PAGE])];
    for (result, page) in write(&mut *channel, &pages).into_iter().zip(&pages) {
        assert!(read(&mut *channel, result.unwrap()).unwrap() == *page);
    }
    let usage = store.usage();
    assert_eq!(
        (usage.pages_filled, usage.ram_compressed, usage.ram_used),
        (3, 0, 0)
    );
}

#[test]
fn incompressible_pages_go_to_the_disk_if_there_is_one() {
    let mut rng = Rng::with_seed(9);
    let mut noise = Page([0; PAGE]);
    noise.0.fill_with(|| rng.u8(..));
    for (config, in_ram) in [("ram:1M+disk:compaction-swap,size=1M", 0), ("ram:1M", 1)] {
        let store = make(config, 1);
        let mut channel = store.channel(1).unwrap();
        let handle = write_one(&mut *channel, &noise).unwrap();
        assert!(read(&mut *channel, handle).unwrap() == noise);
        let usage = store.usage();
        assert_eq!(
            (usage.pages_ram, usage.pages_disk),
            (in_ram, 1 - in_ram),
            "{config}"
        );
    }
}
