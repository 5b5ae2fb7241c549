//! Loses power at every written sector, with unflushed sectors surviving in part: the next open
//! finds the table from before or after the interrupted operation.

use super::mock_device::MockDevice;
use crate::swapfs::block_device::BlockDevice;
use crate::swapfs::file::{FileId, FileName};
use crate::swapfs::fs::SwapFs;
use crate::swapfs::superblock::Superblocks;
use crate::swapfs::{DATA, FileError, OpenError, UNIT};
use std::sync::Arc;

const SIZE: u64 = DATA + 40 * UNIT;

/// Random outcomes tried for each loss of power.
const WAYS: u64 = 12;

type Operation = fn(&mut SwapFs<MockDevice>) -> Result<(), FileError>;

fn name(tag: u8) -> FileName {
    FileName::new(&[tag; 16]).unwrap()
}

fn id(fs: &SwapFs<MockDevice>, tag: u8) -> FileId {
    fs.find(&name(tag)).unwrap().id()
}

/// Each changes the table in another way; images are large enough to span sectors.
const OPERATIONS: [Operation; 9] = [
    |fs| fs.create(name(1), 5 * UNIT, &[1; 500]).map(drop),
    |fs| fs.create(name(2), 7 * UNIT, &[2; 500]).map(drop),
    |fs| fs.create(name(3), 9 * UNIT, &[3; 512]).map(drop),
    |fs| fs.set_blob(id(fs, 2), &[9; 480]),
    |fs| fs.release(id(fs, 1)),
    |fs| fs.grow(id(fs, 3), 30 * UNIT),
    |fs| {
        let mut scrub = fs.scrub(id(fs, 3))?.unwrap();
        scrub.run().map_err(|_| FileError::Damaged)?;
        fs.complete_scrub(scrub)
    },
    |fs| fs.release(id(fs, 2)),
    |fs| fs.create(name(1), 10 * UNIT, &[]).map(drop),
];

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    move || rng.u64(..)
}

fn fresh() -> SwapFs<MockDevice> {
    SwapFs::format_on(MockDevice::new(SIZE), [7; 16], false).unwrap()
}

/// What an open would find now on the device of `fs`.
fn found(fs: &SwapFs<MockDevice>, random: &mut dyn FnMut() -> u64) -> SwapFs<MockDevice> {
    SwapFs::open_on(fs.medium().recover(random)).unwrap()
}

#[test]
fn after_any_loss_of_power_the_tables_are_those_before_or_after() {
    let mut start = fresh().medium().copy();
    let mut losses = 0;
    for operation in OPERATIONS {
        let mut fs = SwapFs::open_on(start.copy()).unwrap();
        let before = fs.table().clone();
        operation(&mut fs).unwrap();
        let after = fs.table().clone();
        assert_ne!(before, after);
        let next = fs.medium().copy();

        let mut seen = [0, 0];
        for cut in 0.. {
            let mut fs = SwapFs::open_on(start.copy()).unwrap();
            fs.medium().lose_power_after(cut);
            let done = operation(&mut fs);
            if !fs.medium().has_lost_power() {
                break;
            }
            for way in 0..WAYS {
                let found = found(&fs, &mut random(cut as u64 * WAYS + way));
                let which = [&before, &after].iter().position(|&t| t == found.table());
                seen[which.expect("neither before nor after")] += 1;
                assert!(done.is_err() || which == Some(1), "done, but not durable");
                losses += 1;
            }
        }
        assert!(seen.iter().all(|&times| times > 0), "{seen:?}");
        start = next;
    }
    assert!(losses > 1000, "{losses}");
}

#[test]
fn power_lost_while_a_copy_is_mended_loses_nothing() {
    let mut fs = fresh();
    OPERATIONS[0](&mut fs).unwrap();
    let kept = fs.table().clone();
    for copy in 0..2 {
        let decayed = fs.medium().copy();
        decayed.mark(copy * DATA / 2, 0xEE);
        for cut in 0.. {
            let device = Arc::new(decayed.copy());
            device.lose_power_after(cut);
            let _ = Superblocks::open(device.clone());
            if !device.has_lost_power() {
                break;
            }
            for way in 0..WAYS {
                let left = device.recover(&mut random(cut as u64 * WAYS + way));
                assert_eq!(*SwapFs::open_on(left).unwrap().table(), kept);
            }
        }
    }
}

#[test]
fn either_copy_may_decay_and_is_mended() {
    let mut fs = fresh();
    OPERATIONS[0](&mut fs).unwrap();
    let device = fs.medium().copy();
    for copy in [0, 1] {
        let device = device.copy();
        device.mark(copy * DATA / 2, 0xEE);
        let mended = SwapFs::open_on(device).unwrap();
        assert_eq!(mended.table(), fs.table());
        let device = mended.medium().copy();
        device.mark((1 - copy) * DATA / 2, 0xEE);
        assert_eq!(SwapFs::open_on(device).unwrap().table(), fs.table());
    }
    // The second sector: the first still identifies the format.
    device.mark(512, 0xEE);
    device.mark(DATA / 2 + 512, 0xEE);
    let error = SwapFs::open_on(device).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[test]
fn either_copy_may_be_unreadable_and_is_mended_but_not_both() {
    let mut fs = fresh();
    OPERATIONS[0](&mut fs).unwrap();
    // The first sector identifies the format; the last is the table's.
    for (copy, sector) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let device = fs.medium().copy();
        device.damage(copy * DATA / 2 + sector * 512);
        let mended = SwapFs::open_on(device).unwrap();
        assert_eq!(mended.table(), fs.table());
        let device = mended.medium().copy();
        device.damage((1 - copy) * DATA / 2);
        assert_eq!(SwapFs::open_on(device).unwrap().table(), fs.table());
    }
    for other in [
        |device: &MockDevice| device.damage(DATA / 2),
        |device: &MockDevice| device.mark(DATA / 2, 0xEE),
    ] {
        let device = fs.medium().copy();
        device.damage(0);
        other(&device);
        let error = SwapFs::open_on(device).err().unwrap();
        assert!(matches!(error, OpenError::Io { .. }), "{error}");
    }
}

#[test]
fn a_write_that_fails_changes_nothing_and_the_next_one_mends_it() {
    let mut fs = fresh();
    OPERATIONS[0](&mut fs).unwrap();
    let before = fs.table().clone();
    fs.medium().fail(true);
    for _ in 0..3 {
        let error = OPERATIONS[1](&mut fs).unwrap_err();
        assert!(matches!(&error, FileError::Io { place, .. } if place == fs.medium().name()));
        assert_eq!(*fs.table(), before);
    }
    fs.medium().fail(false);
    OPERATIONS[1](&mut fs).unwrap();
    let found = SwapFs::open_on(fs.medium().copy()).unwrap();
    assert_eq!(found.table(), fs.table());
}

#[test]
fn the_copy_that_could_not_be_written_is_the_next_to_be() {
    let mut tried = 0;
    for failure in 0.. {
        let mut fs = fresh();
        fs.medium().lose_power_after(failure);
        let done = OPERATIONS[0](&mut fs);
        if !fs.medium().has_lost_power() {
            break;
        }
        if done.is_err() {
            continue;
        }
        // Only the first copy is whole, and what was written of the second is uncertain.
        let before = fs.table().clone();
        for cut in 0..8 {
            fs.medium().recover_in_place();
            fs.medium().lose_power_after(cut);
            assert!(OPERATIONS[1](&mut fs).is_err());
            for way in 0..WAYS {
                let found = found(&fs, &mut random(cut as u64 * WAYS + way));
                assert!(*found.table() == before || found.files().len() == 2);
                tried += 1;
            }
        }
    }
    assert!(tried > 0);
}

#[test]
fn power_lost_at_any_time_shows_nobody_what_another_wrote() {
    // Another owner's data fills the device.
    let mut start = fresh().medium().copy();
    for unit in 0..40 {
        start.mark(DATA + unit * UNIT, 0xAA);
    }
    for operation in OPERATIONS {
        for cut in 0.. {
            let mut fs = SwapFs::open_on(start.copy()).unwrap();
            fs.medium().lose_power_after(cut);
            let _ = operation(&mut fs);
            if !fs.medium().has_lost_power() {
                start = fs.medium().copy();
                break;
            }
            for way in 0..WAYS {
                let found = found(&fs, &mut random(cut as u64 * WAYS + way));
                for file in found.files() {
                    let extents = found.extents(file.id()).unwrap();
                    let units = (0..extents.size()).step_by(UNIT as usize);
                    let mut pieces = units.flat_map(|at| extents.translate(at, 1).unwrap());
                    assert!(pieces.all(|piece| found.medium().byte(piece.device) == 0));
                }
            }
        }
    }
}
