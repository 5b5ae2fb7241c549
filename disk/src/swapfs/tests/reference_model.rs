//! Random operations against the simplest possible filesystem: names, sizes, and the last writer of
//! each unit.

use super::mock_device::MockDevice;
use crate::swapfs::file::{FileId, FileName, MAX_BLOB};
use crate::swapfs::fs::SwapFs;
use crate::swapfs::{DATA, FileError, UNIT};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const UNITS: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Create { tag: u8, size: u64, blob: usize },
    Grow { tag: u8, size: u64 },
    Release { tag: u8 },
    SetBlob { tag: u8, blob: usize },
    Scrub { tag: u8 },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tag = || 1u8..7;
    let size = || 0u64..(10 * UNIT);
    let blob = || prop_oneof![9 => 0..=MAX_BLOB, 1 => Just(MAX_BLOB + 1)];
    let step = prop_oneof![
        3 => (tag(), size(), blob()).prop_map(|(tag, size, blob)| Step::Create { tag, size, blob }),
        3 => (tag(), size()).prop_map(|(tag, size)| Step::Grow { tag, size }),
        2 => tag().prop_map(|tag| Step::Release { tag }),
        1 => (tag(), blob()).prop_map(|(tag, blob)| Step::SetBlob { tag, blob }),
        3 => tag().prop_map(|tag| Step::Scrub { tag }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

struct Expected {
    id: FileId,
    units: u64,
    clean: u64,
    blob: Vec<u8>,
}

#[derive(Default)]
struct ReferenceModel {
    files: BTreeMap<u8, Expected>,
    /// Ids that were ever assigned.
    ids: BTreeSet<FileId>,
}

impl ReferenceModel {
    fn free(&self) -> u64 {
        UNITS - self.files.values().map(|file| file.units).sum::<u64>()
    }

    fn id(&self, tag: u8) -> FileId {
        self.files
            .get(&tag)
            .map_or(FileId(u64::MAX), |file| file.id)
    }
}

fn name(tag: u8) -> FileName {
    FileName::new(&[tag; 20]).unwrap()
}

/// Performs a step on both and compares the results.
fn take(step: &Step, fs: SwapFs<MockDevice>, model: &mut ReferenceModel) -> SwapFs<MockDevice> {
    let mut fs = fs;
    match *step {
        Step::Create { tag, size, blob } => create(tag, size, &vec![tag; blob], &mut fs, model),
        Step::Grow { tag, size } => {
            let answer = fs.grow(model.id(tag), size);
            let free = model.free();
            let Some(file) = model.files.get_mut(&tag) else {
                assert!(matches!(answer, Err(FileError::Missing(_))));
                return fs;
            };
            let units = size.div_ceil(UNIT);
            match answer {
                Ok(()) => file.units = units,
                Err(FileError::Shrinks { .. }) => assert!(size < file.units * UNIT),
                Err(FileError::NoRoom { asked, free: f, .. }) => {
                    assert_eq!((asked, f), (size - file.units * UNIT, free * UNIT));
                    assert!(units - file.units > free);
                }
                other => panic!("{other:?}"),
            }
        }
        Step::Release { tag } => {
            let answer = fs.release(model.id(tag));
            assert_eq!(answer.is_ok(), model.files.remove(&tag).is_some());
        }
        Step::SetBlob { tag, blob } => {
            let answer = fs.set_blob(model.id(tag), &vec![!tag; blob]);
            match model.files.get_mut(&tag) {
                Some(file) if blob <= MAX_BLOB => {
                    answer.unwrap();
                    file.blob = vec![!tag; blob];
                }
                _ => assert!(answer.is_err()),
            }
        }
        Step::Scrub { tag } => scrub(tag, &mut fs, model),
        Step::Reopen => fs = SwapFs::open_on(fs.medium().copy()).unwrap(),
    }
    fs
}

fn create(
    tag: u8,
    size: u64,
    blob: &[u8],
    fs: &mut SwapFs<MockDevice>,
    model: &mut ReferenceModel,
) {
    let units = size.div_ceil(UNIT);
    match fs.create(name(tag), size, blob) {
        Ok(id) => {
            assert!(model.ids.insert(id), "{id} was reused");
            let file = Expected {
                id,
                units,
                clean: 0,
                blob: blob.to_vec(),
            };
            assert!(model.files.insert(tag, file).is_none());
        }
        Err(FileError::Exists { .. }) => assert!(model.files.contains_key(&tag)),
        Err(FileError::Empty) => assert_eq!(size, 0),
        Err(FileError::Blob(len)) => assert!(len == blob.len() && len > MAX_BLOB),
        Err(FileError::NoRoom { asked, free, .. }) => {
            assert_eq!((asked, free), (size, model.free() * UNIT));
            assert!(units > model.free());
        }
        Err(other) => panic!("{other}"),
    }
}

/// Scrubs, then writes to all usable space, so that a leak to the next owner would be seen.
fn scrub(tag: u8, fs: &mut SwapFs<MockDevice>, model: &mut ReferenceModel) {
    let Some(file) = model.files.get_mut(&tag) else {
        assert!(fs.scrub(model.id(tag)).is_err());
        return;
    };
    let Some(mut scrub) = fs.scrub(file.id).unwrap() else {
        assert_eq!(file.clean, file.units);
        return;
    };
    scrub.run().unwrap();
    fs.complete_scrub(scrub).unwrap();
    let extents = fs.extents(file.id).unwrap();
    for unit in 0..file.units {
        let piece = extents.translate(unit * UNIT, 512).unwrap().next().unwrap();
        let had = fs.medium().byte(piece.device);
        assert_eq!(had, if unit < file.clean { tag } else { 0 });
        fs.medium().mark(piece.device, tag);
    }
    file.clean = file.units;
}

fn compare(fs: &SwapFs<MockDevice>, model: &ReferenceModel) {
    assert_eq!(fs.files().len(), model.files.len());
    let mut taken = BTreeSet::new();
    for (&tag, expected) in &model.files {
        let file = fs.find(&name(tag)).unwrap();
        assert_eq!(file, fs.file(expected.id).unwrap());
        assert_eq!(file.size(), expected.units * UNIT);
        assert_eq!(file.clean(), expected.clean * UNIT);
        assert_eq!(file.blob(), expected.blob);
        assert_eq!(fs.extents(expected.id).unwrap().size(), file.clean());
        for run in &file.runs {
            for unit in run.first..run.end() {
                assert!(u64::from(unit) < UNITS && taken.insert(unit));
            }
        }
        // Adjacent runs are one extent.
        assert!(file.runs.windows(2).all(|two| two[0].end() != two[1].first));
    }
    let usage = fs.usage();
    assert_eq!(usage.total, UNITS * UNIT);
    assert_eq!(usage.free, model.free() * UNIT);
    assert_eq!(usage.free + taken.len() as u64 * UNIT, usage.total);
    assert!(usage.largest <= usage.free && (usage.largest > 0) == (usage.free > 0));
}

proptest! {
    #[test]
    fn it_behaves_like_the_reference_model(steps in steps()) {
        let medium = MockDevice::new(DATA + UNITS * UNIT);
        for unit in 0..UNITS {
            medium.mark(DATA + unit * UNIT, 0xAA);
        }
        let mut fs = SwapFs::format_on(medium, [1; 16], true).unwrap();
        let mut model = ReferenceModel::default();
        for step in &steps {
            fs = take(step, fs, &mut model);
            compare(&fs, &model);
        }
    }
}
