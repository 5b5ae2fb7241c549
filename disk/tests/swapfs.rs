//! The swap filesystem on real files and partitions.

use disk::swapfs::{FileError, FileName, FormatOptions, OpenError, ScrubError, SwapFs, UNIT};
use rustix::fd::AsRawFd;
use rustix::fs::{FallocateFlags, MemfdFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use tempfile::TempDir;

const TABLES: u64 = 2 << 20;

/// On the disk of the build directory: other places may be memory.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn sized(units: u64) -> FormatOptions {
    FormatOptions {
        size: Some(TABLES + units * UNIT),
        force: false,
    }
}

fn forced() -> FormatOptions {
    FormatOptions {
        size: None,
        force: true,
    }
}

fn name(tag: u8) -> FileName {
    FileName::new(&[tag; 16]).unwrap()
}

fn refusal(result: Result<SwapFs, OpenError>) -> String {
    result.err().expect("not refused").to_string()
}

/// A file that is allocated and holds `bytes` at `at`.
fn file_with(path: &Path, size: u64, bytes: &[u8], at: u64) -> PathBuf {
    let file = File::create(path).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size).unwrap();
    file.write_all_at(bytes, at).unwrap();
    path.to_owned()
}

#[test]
fn another_size_is_refused_of_an_open_filesystem_as_of_one_that_is_checked() {
    let directory = directory();
    let path = directory.path().join("swap");
    // A file has whole pages.
    let asked = |beyond| FormatOptions {
        size: Some(TABLES + 4 * UNIT + beyond),
        force: false,
    };
    let fs = SwapFs::format(&path, &asked(5)).unwrap();
    assert_eq!(fs.require_size(None), Ok(()));
    assert_eq!(fs.require_size(asked(5).size), Ok(()));
    let refused = fs.require_size(asked(UNIT).size).unwrap_err();
    drop(fs);
    assert!(SwapFs::check(&path, &asked(5)).is_ok());
    assert_eq!(
        SwapFs::check(&path, &asked(UNIT)).err(),
        Some(refused.clone())
    );
    assert!(
        refused.to_string().contains("leave the size out"),
        "{refused}"
    );
}

#[test]
fn files_survive_a_reopen_at_the_same_extents() {
    let directory = directory();
    let path = directory.path().join("swap");
    let mut fs = SwapFs::format(&path, &sized(8)).unwrap();
    let file = fs.create(name(1), 3 * UNIT - 5, b"a contract").unwrap();
    let mut scrub = fs.scrub(file).unwrap().unwrap();
    std::thread::spawn(move || scrub.run().map(|()| scrub))
        .join()
        .unwrap()
        .map(|scrub| fs.complete_scrub(scrub).unwrap())
        .unwrap();
    let (id, files) = (fs.id(), fs.files().to_vec());
    let extents = fs.extents(file).unwrap();
    assert_eq!(extents.size(), 3 * UNIT);
    drop(fs);

    let fs = SwapFs::open(&path).unwrap();
    assert_eq!((fs.id(), fs.files()), (id, &files[..]));
    assert_eq!(fs.extents(file).unwrap(), extents);
    assert_eq!(fs.file(file).unwrap().blob(), b"a contract");
    assert_eq!(fs.usage().free, 5 * UNIT);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), TABLES + 8 * UNIT);
}

#[test]
fn the_next_owner_reads_zeros() {
    let directory = directory();
    let path = directory.path().join("swap");
    let mut fs = SwapFs::format(&path, &sized(2)).unwrap();
    let outside = File::options().read(true).write(true).open(&path).unwrap();
    let first = fs.create(name(1), 2 * UNIT, &[]).unwrap();
    outside.write_all_at(&vec![0xAA; 2 << 20], TABLES).unwrap();
    outside.sync_all().unwrap();
    fs.release(first).unwrap();

    let second = fs.create(name(2), 2 * UNIT, &[]).unwrap();
    assert_eq!(fs.extents(second).unwrap().size(), 0);
    let mut scrub = fs.scrub(second).unwrap().unwrap();
    assert_eq!(scrub.step(UNIT, |_, _| Ok(())).unwrap().done, UNIT);
    let half = fs.complete_scrub(scrub);
    assert_eq!(half, Err(FileError::NotScrubbed(second)));
    let mut scrub = fs.scrub(second).unwrap().unwrap();
    scrub.run().unwrap();
    fs.complete_scrub(scrub).unwrap();
    let piece = fs.extents(second).unwrap().list()[0];
    let mut bytes = vec![1; piece.len as usize];
    outside.read_exact_at(&mut bytes, piece.device).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(fs.scrub(second).unwrap().is_none());
}

#[test]
fn a_scrub_writes_nothing_once_its_file_is_released() {
    let directory = directory();
    let mut fs = SwapFs::format(&directory.path().join("swap"), &sized(4)).unwrap();
    let file = fs.create(name(1), 4 * UNIT, &[]).unwrap();
    let mut old = fs.scrub(file).unwrap().unwrap();
    let mut new = fs.scrub(file).unwrap().unwrap();
    assert_eq!(old.step(UNIT, |_, _| Ok(())), Err(ScrubError::GivenUp));
    assert_eq!(new.file(), file);
    new.step(UNIT, |_, _| Ok(())).unwrap();
    fs.release(file).unwrap();
    assert_eq!(new.run(), Err(ScrubError::GivenUp));
    assert_eq!(fs.complete_scrub(new), Err(FileError::NotScrubbed(file)));
}

#[test]
fn a_scrub_is_cancelled_without_waiting_for_its_current_step() {
    let directory = directory();
    let mut fs = SwapFs::format(&directory.path().join("swap"), &sized(4)).unwrap();
    let file = fs.create(name(1), 4 * UNIT, &[]).unwrap();
    let mut scrub = fs.scrub(file).unwrap().unwrap();
    let (begun, begins) = channel();
    let (end, ends) = channel();
    let steps = std::thread::spawn(move || {
        let first = scrub.step(UNIT, |_, _| {
            begun.send(()).unwrap();
            ends.recv().unwrap();
            Ok(())
        });
        first.unwrap();
        scrub.step(UNIT, |_, _| panic!("it is cancelled"))
    });
    begins.recv().unwrap();
    let cancelled = fs.begin_cancel(file);
    end.send(()).unwrap();
    cancelled.wait();
    assert_eq!(steps.join().unwrap(), Err(ScrubError::GivenUp));
    fs.release(file).unwrap();
}

#[test]
fn a_second_open_is_refused_with_the_holders_pid() {
    let directory = directory();
    let path = directory.path().join("swap");
    let fs = SwapFs::format(&path, &sized(2)).unwrap();
    let me = std::process::id();
    for refused in [SwapFs::open(&path), SwapFs::format(&path, &forced())] {
        let held = OpenError::Held {
            place: path.display().to_string(),
            holder: Some(me),
        };
        assert_eq!(refused.err(), Some(held));
    }
    // An I/O descriptor is a duplicate, which keeps the lock as well.
    let data = rustix::io::fcntl_dupfd_cloexec(fs.medium().as_ref(), 0).unwrap();
    drop(fs);
    assert!(refusal(SwapFs::open(&path)).contains(&format!("process {me}")));
    drop(data);
    assert!(SwapFs::open(&path).is_ok());
}

#[test]
fn nothing_is_formatted_over_unless_forced() {
    let directory = directory();
    let size = TABLES + 2 * UNIT;
    let cases: [(&[u8], u64, &str); 5] = [
        (&[0x53, 0xEF], 1080, "ext4"),
        (b"EFI PART", 512, "partition table"),
        (b"SWAPSPACE2", 4086, "swap space of the kernel"),
        (b"precious", 5000, "data (from byte 5000 on)"),
        (b"backup", size - 6, "data (from byte"),
    ];
    for (case, (bytes, at, what)) in cases.into_iter().enumerate() {
        let path = file_with(&directory.path().join(case.to_string()), size, bytes, at);
        let before = std::fs::read(&path).unwrap();
        let text = refusal(SwapFs::format(&path, &FormatOptions::default()));
        assert!(
            text.contains(what) && text.contains("remove that first"),
            "{text}"
        );
        assert!(refusal(SwapFs::open(&path)).contains("not a swap filesystem"));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        drop(SwapFs::format(&path, &forced()).unwrap());
        assert!(SwapFs::open(&path).is_ok());
        let after = std::fs::read(&path).unwrap();
        assert_ne!(
            after[at as usize..][..bytes.len()],
            *bytes,
            "{what} is found still"
        );
    }
}

#[test]
fn a_swap_filesystem_is_formatted_again_only_by_force() {
    let directory = directory();
    let path = directory.path().join("swap");
    let mut fs = SwapFs::format(&path, &sized(2)).unwrap();
    fs.create(name(1), UNIT, &[]).unwrap();
    drop(fs);
    let text = refusal(SwapFs::format(&path, &FormatOptions::default()));
    assert!(text.contains("a swap filesystem"), "{text}");
    drop(SwapFs::format(&path, &forced()).unwrap());
    assert_eq!(SwapFs::open(&path).unwrap().files(), []);
}

#[test]
fn paths_that_cannot_hold_pages_are_refused_by_name() {
    let directory = directory();
    let path = directory.path().join("swap");
    let there = directory.path().to_owned();
    assert!(refusal(SwapFs::open(&there)).contains("is a directory"));
    assert!(refusal(SwapFs::open(&path)).contains("a daemon makes it"));
    assert!(refusal(SwapFs::open(Path::new("/dev/null"))).contains("neither a partition"));
    assert!(refusal(SwapFs::format(&path, &FormatOptions::default())).contains("give its size"));

    let memory = rustix::fs::memfd_create("swap", MemfdFlags::CLOEXEC).unwrap();
    let in_memory = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    assert!(refusal(SwapFs::format(&in_memory, &sized(2))).contains("memory"));

    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let text = refusal(SwapFs::format(&path, &FormatOptions::default()));
    assert!(
        text.contains("holes") && text.contains("fallocate -l 8388608"),
        "{text}"
    );
    let text = refusal(SwapFs::format(&path, &sized(1)));
    assert!(text.contains("8MiB, and 3MiB are asked"), "{text}");
}

#[test]
fn a_refused_file_is_not_left_behind() {
    let directory = directory();
    let path = directory.path().join("swap");
    let text = refusal(SwapFs::format(&path, &sized(1 << 30)));
    assert!(text.contains("asked, and its file system has"), "{text}");
    assert!(refusal(SwapFs::format(&path, &sized(0))).contains("needs at least 3MiB"));
    assert!(!path.exists());
}

#[test]
fn a_file_that_lost_its_end_is_refused_with_both_sizes() {
    let directory = directory();
    let path = directory.path().join("swap");
    drop(SwapFs::format(&path, &sized(6)).unwrap());
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(TABLES + 2 * UNIT).unwrap();
    let text = refusal(SwapFs::open(&path));
    assert!(text.contains("made for 8MiB, and there are 4MiB"), "{text}");
}

#[test]
fn a_refusal_of_space_carries_the_figures() {
    let directory = directory();
    let mut fs = SwapFs::format(&directory.path().join("swap"), &sized(8)).unwrap();
    let ids: Vec<_> = (0..8)
        .map(|tag| fs.create(name(tag), UNIT, &[]).unwrap())
        .collect();
    for at in [1, 3, 4] {
        fs.release(ids[at]).unwrap();
    }
    let refused = fs.create(name(9), 5 * UNIT, &[]).unwrap_err();
    let expected = FileError::NoRoom {
        asked: 5 * UNIT,
        free: 3 * UNIT,
        largest: 2 * UNIT,
    };
    assert_eq!(refused, expected);
    let text = refused.to_string();
    assert!(
        text.starts_with("5MiB of swap asked, 3MiB free (the largest piece 2MiB)"),
        "{text}"
    );
    let file = fs.create(name(9), 3 * UNIT, &[]).unwrap();
    assert_eq!(fs.usage().extents, 5 + 2);
    assert_eq!(fs.file(file).unwrap().size(), 3 * UNIT);
}
