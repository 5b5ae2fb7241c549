//! Objects of a file system whose server answers no more: it may be the process that sends them.

mod common;

use common::{PAGE, alone, fork, sockets, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use space::{MemoryObject, SpaceError};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// The numbers of requests (`linux/fuse.h`).
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Bytes of an answer's head.
const HEAD: usize = 16;

fn put<const N: usize>(answer: &mut Vec<u8>, words: [u32; N]) {
    answer.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
}

/// The attributes of the folder, which is file 1, or of the one file in it.
fn put_attributes(answer: &mut Vec<u8>, file: u32) {
    let mode = if file == 1 { 0o40755 } else { 0o100_666 };
    put(answer, [file, 0, 2 * PAGE as u32, 0]);
    put(answer, [0; 11]);
    put(answer, [mode, 1, 0, 0, 0, PAGE as u32, 0]);
}

/// Answers requests until a descriptor of the file is closed.
fn answer_until_close(mut device: File) {
    let mut request = vec![0; 1 << 17];
    loop {
        let Ok(bytes) = device.read(&mut request) else {
            return;
        };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let operation = word(4);
        let mut answer = vec![0; HEAD];
        answer[8..16].copy_from_slice(&request[8..16]);
        match operation {
            INIT => {
                put(&mut answer, [7, 31, 1 << 16, 0, 0, 1 << 16]);
                put(&mut answer, [0; 10]);
            }
            LOOKUP => {
                put(&mut answer, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                put_attributes(&mut answer, 2);
            }
            GETATTR => {
                put(&mut answer, [0; 4]);
                put_attributes(&mut answer, word(16));
            }
            OPEN => put(&mut answer, [1, 0, 0, 0]),
            FLUSH => {}
            // ENOSYS.
            _ => answer[4..8].copy_from_slice(&(-38i32).to_ne_bytes()),
        }
        let len = answer.len() as u32;
        answer[..4].copy_from_slice(&len.to_ne_bytes());
        assert!(bytes > 0 && device.write(&answer).is_ok());
        if operation == FLUSH {
            return;
        }
    }
}

/// Makes a mount namespace with a file system of its own at `folder`, and sends the open file in it over each socket.
/// From the message on `is_silent` on no request has an answer, until the process ends.
fn serve_and_send(folder: &Path, to: &[&OwnedFd], is_silent: &OwnedFd) -> i32 {
    let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let null = std::ptr::null();
    // SAFETY: concerns the calling child's own namespace.
    let is_apart = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(null, c"/".as_ptr(), null, private, null.cast()) == 0
    };
    let (Ok(device), true) = (device, is_apart) else {
        return SKIPPED;
    };
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).unwrap();
    let kind = c"fuse".as_ptr();
    // SAFETY: as above.
    let mounted = unsafe { libc::mount(kind, path.as_ptr(), kind, 0, options.as_ptr().cast()) };
    if mounted != 0 {
        return SKIPPED;
    }
    let of_thread = device.try_clone().unwrap();
    let server = std::thread::spawn(|| answer_until_close(of_thread));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.join("f"))
        .unwrap();
    // As `MemoryObject::send` does: all rights, two pages from the beginning on.
    let mut message = [0; 24];
    message[8..16].copy_from_slice(&(2 * PAGE as u64).to_le_bytes());
    message[16..20].fill(1);
    for socket in to {
        // Two of them: the second one is to be closed.
        let files = [file.as_fd(), file.as_fd()];
        host::seqpacket::send(socket, &message, &files, SendFlags::empty()).unwrap();
    }
    // The end of this process is to wait for no answer: the file is in the messages alone.
    drop(file);
    server.join().unwrap();
    rustix::io::write(is_silent, &[1]).unwrap();
    loop {
        std::thread::park();
    }
}

/// What a process ends with that cannot mount.
const SKIPPED: i32 = 77;

/// Waits for a message of a process, which may be stopped for ever.
fn is_ready(from: &OwnedFd) -> bool {
    let patience = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut ready = [PollFd::new(from, PollFlags::IN)];
    poll(&mut ready, Some(&patience)).unwrap() > 0
}

/// Receives an object, in the mount namespace of the server where it `sees` that, and reports how that ended.
fn receive(socket: &OwnedFd, server: i32, sees: bool, report: &OwnedFd) -> i32 {
    if sees {
        let namespace = File::open(format!("/proc/{server}/ns/mnt")).unwrap();
        // SAFETY: concerns the calling child alone.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) };
        assert_eq!(entered, 0);
    }
    let ended = match MemoryObject::receive(socket) {
        Err(SpaceError::ServedFile) => b'r',
        _ => b'?',
    };
    rustix::io::write(report, &[ended]).unwrap();
    0
}

#[test]
fn an_object_of_a_file_server_that_answers_no_more_is_refused_at_once() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let [(ours, theirs), (others_ours, others_theirs)] = [sockets(), sockets()];
    let (silent, is_silent) = rustix::pipe::pipe().unwrap();
    let server = fork(|| serve_and_send(folder.path(), &[&theirs, &others_theirs], &is_silent));
    drop((theirs, others_theirs, is_silent));
    let is_silent = is_ready(&silent) && rustix::io::read(&silent, &mut [0]) == Ok(1);
    let mut receivers = Vec::new();
    let mut received = Vec::new();
    let each = [(false, &ours), (true, &others_ours)];
    for (sees, socket) in each.into_iter().filter(|_| is_silent) {
        let (result, report) = rustix::pipe::pipe().unwrap();
        receivers.push(fork(|| receive(socket, server, sees, &report)));
        drop(report);
        let mut byte = [0];
        let has_ended = is_ready(&result) && rustix::io::read(&result, &mut byte) == Ok(1);
        received.push(has_ended.then_some(byte[0]));
    }
    // The end of the server ends what waits for it.
    // SAFETY: this test's own child.
    unsafe { libc::kill(server, libc::SIGKILL) };
    let ended = wait(server);
    receivers
        .into_iter()
        .for_each(|receiver| assert_eq!(wait(receiver), Ok(0)));
    if ended == Ok(SKIPPED) {
        println!("SKIPPED: no file system can be mounted here");
        return;
    }
    assert_eq!(received, [Some(b'r'); 2]);
}
