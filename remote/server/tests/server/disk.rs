//! A server whose RAM is a cache of its disk.

use crate::common::{Client, QOS, config, page};
use proptest::prelude::*;
use remote_policy::identity::ObjectId;
use remote_wire::Status;
use selfpage_remote_server::{DiskConfig, Server, ServerConfig, StartError};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wired::PAGE;

/// The least RAM of a server with a disk.
const RAM: u64 = 1024;

fn folder() -> tempfile::TempDir {
    // Beside the binaries: a folder of a real file system, not of RAM.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn with_disk(ram_pages: u64, path: &Path, size: u64) -> ServerConfig {
    let path = path.to_path_buf();
    ServerConfig {
        disk: Some(DiskConfig { path, size }),
        ..config(ram_pages)
    }
}

fn start_with_disk(ram_pages: u64, path: PathBuf, disk_pages: u64) -> Server {
    let size = (disk_pages + 1) * PAGE as u64;
    Server::start(with_disk(ram_pages, &path, size)).unwrap()
}

fn contents(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = page(version as u8);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn pages_beyond_the_ram_are_read_from_the_disk() {
    let folder = folder();
    let server = start_with_disk(RAM, folder.path().join("pages"), 4 * RAM);
    let (mut client, object) = Client::with_object(server.address(), 1, 4 * RAM);
    for first in (0..4 * RAM).step_by(32) {
        let run: Vec<u8> = (first..first + 32).flat_map(|at| contents(at, 1)).collect();
        client.write(object, first, 1, &run).unwrap();
    }
    for first in (0..4 * RAM as usize).step_by(16).rev() {
        let first = first as u64;
        let (versions, bytes) = client.read(object, first, 16).unwrap();
        assert_eq!(versions, [1; 16]);
        let run: Vec<u8> = (first..first + 16).flat_map(|at| contents(at, 1)).collect();
        assert!(bytes == run, "pages from {first}");
    }
    client.discard(object, 0, 4 * RAM as u16).unwrap();
    assert_eq!(client.read(object, 9, 1), Ok((vec![0], page(0))));
}

#[test]
fn a_page_that_the_disk_lost_is_an_error_and_no_other_page() {
    let folder = folder();
    let path = folder.path().join("pages");
    let server = start_with_disk(RAM, path.clone(), 4 * RAM);
    let (mut client, object) = Client::with_object(server.address(), 1, 4 * RAM);
    for at in (0..4 * RAM).step_by(32) {
        client.write(object, at, 1, &page(1).repeat(32)).unwrap();
    }
    let size = std::fs::metadata(&path).unwrap().len();
    // Other bytes: the checksum notices. No bytes: the read fails.
    let lose: [fn(&Path, u64); 2] = [
        |path, size| std::fs::write(path, vec![2; size as usize]).unwrap(),
        |path, _| std::fs::write(path, []).unwrap(),
    ];
    for lose in lose {
        lose(&path, size);
        // The last pages written are in RAM, the first are not.
        let refused = client.read(object, 0, 32).unwrap_err();
        assert_eq!(refused.0, Status::Disk, "{}", refused.1);
        let last = client.read(object, 4 * RAM - 1, 1);
        assert_eq!(last, Ok((vec![1], page(1))));
    }
    // A client repairs the page from another copy, whose version is the same.
    client.write(object, 1, 1, &page(1)).unwrap();
    assert_eq!(client.read(object, 1, 1), Ok((vec![1], page(1))));
    client.write(object, 0, 2, &page(3)).unwrap();
    assert_eq!(client.read(object, 0, 1), Ok((vec![2], page(3))));
}

#[test]
fn a_file_that_other_users_may_read_is_refused() {
    let folder = folder();
    let path = folder.path().join("pages");
    std::fs::write(&path, []).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&path, mode).unwrap();
    let refused = Server::start(with_disk(RAM, &path, 64 * PAGE as u64));
    let Err(StartError::Disk(why)) = refused else {
        panic!("it starts");
    };
    assert!(why.contains("has the mode 644"), "{why}");
}

#[test]
fn another_programs_file_stays_as_it_is() {
    let folder = folder();
    let path = folder.path().join("notes");
    std::fs::write(&path, "not pages").unwrap();
    let started = Server::start(with_disk(RAM, &path, 1 << 20));
    let Err(StartError::Disk(why)) = started else {
        panic!("it used the file");
    };
    assert!(why.contains("stays as it is"), "{why}");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "not pages");
}

#[test]
fn two_servers_cannot_share_a_file_and_a_later_one_can_use_it() {
    let folder = folder();
    let path = folder.path().join("pages");
    let first = start_with_disk(RAM, path.clone(), 64);
    let second = Server::start(with_disk(RAM, &path, 1 << 20));
    assert!(matches!(second, Err(StartError::Disk(why)) if why.contains("another server's")));
    drop(first);
    start_with_disk(RAM, path, 64);
}

/// A small file system in RAM.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    /// An error where this test may not mount one.
    fn mount(options: &CStr) -> std::io::Result<Self> {
        let folder = folder();
        let target = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: the strings end in zero and stay during the call.
        let done = unsafe {
            libc::mount(
                c"none".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        match done {
            0 => Ok(Self(folder)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let target = CString::new(self.0.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: as in `mount`.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_disk_without_room_is_refused_and_left_as_it_was() {
    let small = match SmallFileSystem::mount(c"size=1M") {
        Ok(small) => small,
        Err(why) => return eprintln!("skipped: a file system cannot be mounted here: {why}"),
    };
    let path = small.0.path().join("pages");
    let config = with_disk(RAM, &path, 4 << 20);
    let Err(StartError::Disk(why)) = Server::start(config) else {
        panic!("it has room");
    };
    assert!(why.contains("smaller size"), "{why}");
    assert!(!path.exists());
}

/// A server whose file lies on a file system without room: stores of new places fail until the ballast goes.
struct FullDisk {
    server: Server,
    folder: SmallFileSystem,
}

impl FullDisk {
    /// The first eight places alone stay on the disk, for what `client` writes.
    fn start(client: impl FnOnce(&Server, &Path)) -> std::io::Result<Self> {
        let folder = SmallFileSystem::mount(c"size=12M")?;
        let path = folder.0.path().join("pages");
        let server = start_with_disk(RAM, path.clone(), 2 * RAM);
        client(&server, &path);
        let file = std::fs::File::options().write(true).open(&path)?;
        // The places of pages that are written later go back to the file system, which has no room then.
        let (first, len) = (9 * PAGE as i64, 4 * RAM as i64 * PAGE as i64);
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on an open file.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), flags, first, len) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let ballast = std::fs::write(folder.0.path().join("ballast"), vec![1; 16 << 20]);
        assert!(ballast.is_err(), "the file system has room");
        Ok(Self { folder, server })
    }

    fn make_room(&self) {
        std::fs::remove_file(self.folder.0.path().join("ballast")).unwrap();
    }
}

/// Writes pages until the server has no frame for another.
fn fill_frames(client: &mut Client, object: ObjectId) {
    let refused = (100..2 * RAM).find_map(|at| client.write(object, at, 1, &page(1)).err());
    assert_eq!(refused.map(|why| why.0), Some(Status::Disk));
}

#[test]
fn pages_that_the_disk_refused_are_stored_when_it_has_room() {
    let disk = match FullDisk::start(|_, _| {}) {
        Ok(disk) => disk,
        Err(why) => return eprintln!("skipped: a file system cannot be mounted here: {why}"),
    };
    let (mut client, object) = Client::with_object(disk.server.address(), 1, 2 * RAM);
    fill_frames(&mut client, object);
    disk.make_room();
    let written = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        client.write(object, 90, 1, &page(2).repeat(8)).is_ok()
    });
    assert!(written, "the server has no frames though its disk has room");
    assert_eq!(client.read(object, 100, 1), Ok((vec![1], page(1))));
}

#[test]
fn a_write_without_frames_for_all_its_pages_changes_none() {
    let mut held = None;
    let disk = FullDisk::start(|server, path| {
        let (mut client, object) = Client::with_object(server.address(), 1, 2 * RAM);
        client.write(object, 0, 1, &page(1).repeat(8)).unwrap();
        client.write(object, 0, 2, &page(2).repeat(8)).unwrap();
        let is_second = |place: &&[u8]| *place == page(2);
        while std::fs::read(path)
            .unwrap()
            .chunks(PAGE)
            .filter(is_second)
            .count()
            < 8
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        held = Some((client, object));
    });
    let _disk = match disk {
        Ok(disk) => disk,
        Err(why) => return eprintln!("skipped: a file system cannot be mounted here: {why}"),
    };
    let (mut client, object) = held.unwrap();
    let filler = client.object(2);
    let sealed = client.allocate(1, 2 * RAM, QOS).unwrap();
    client.create(filler, sealed.permit.id, 4 * RAM).unwrap();
    // All other frames get pages that the disk refuses.
    for at in 0..RAM - 8 {
        client.write(filler, at, 1, &page(1)).unwrap();
    }
    let refused = client.write(object, 0, 3, &page(3).repeat(9)).unwrap_err();
    assert_eq!(refused.0, Status::Disk, "{}", refused.1);
    let (versions, bytes) = client.read(object, 0, 8).unwrap();
    assert_eq!(versions, [2; 8]);
    assert!(bytes == page(2).repeat(8), "a page of the refused write");
}

#[derive(Clone, Debug)]
enum Step {
    Write { first: u64, pages: u64 },
    Read { first: u64, pages: u64 },
    Discard { first: u64, pages: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let run = || (0..2 * RAM - 32, 1..=32u64);
    let step = prop_oneof![
        4 => run().prop_map(|(first, pages)| Step::Write { first, pages }),
        4 => run().prop_map(|(first, pages)| Step::Read { first, pages }),
        1 => run().prop_map(|(first, pages)| Step::Discard { first, pages }),
    ];
    prop::collection::vec(step, 200..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn any_requests_read_what_was_last_written(steps in steps()) {
        let folder = folder();
        let server = start_with_disk(RAM, folder.path().join("pages"), 2 * RAM);
        let (mut client, object) = Client::with_object(server.address(), 1, 2 * RAM);
        let mut model = BTreeMap::new();
        for (version, step) in (1..).zip(steps) {
            match step {
                Step::Write { first, pages } => {
                    let run: Vec<u8> = (first..first + pages).flat_map(|at| contents(at, version)).collect();
                    client.write(object, first, version, &run).unwrap();
                    model.extend((first..first + pages).map(|at| (at, version)));
                }
                Step::Read { first, pages } => {
                    let (versions, bytes) = client.read(object, first, pages as u16).unwrap();
                    for ((at, version), bytes) in (first..).zip(versions).zip(bytes.chunks(PAGE)) {
                        prop_assert_eq!(version, model.get(&at).copied().unwrap_or(0));
                        let expected = match version {
                            0 => page(0),
                            version => contents(at, version),
                        };
                        prop_assert!(bytes == expected, "page {}", at);
                    }
                }
                Step::Discard { first, pages } => {
                    client.discard(object, first, pages as u16).unwrap();
                    model.retain(|at, _| !(first..first + pages).contains(at));
                }
            }
        }
    }
}
