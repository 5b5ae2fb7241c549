//! Servers killed and replaced, descriptors forged, forks.

mod common;

use common::*;
use iochannel::{ChannelClient, ChannelGeometry, ChannelServer, ClientFds, Doorbell, create};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OPS: usize = 6;
const RUN_PAGES: usize = 5;

/// A server in a process of its own, which is killed by its pid.
fn serve_in_a_child(kept: &KeptFds, disk: &Disk) -> i32 {
    // SAFETY: the child serves, and is killed.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let (mut server, doorbell) = kept.attach_successor();
        serve(&mut server, &doorbell, disk, &AtomicBool::new(false));
        // SAFETY: ends the child.
        unsafe { libc::_exit(1) };
    }
    pid
}

fn kill(pid: i32) {
    // SAFETY: a child of ours that is not reaped yet.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &mut 0, 0);
    }
}

#[test]
fn no_operation_is_lost_or_wrong_while_servers_are_killed() {
    let (first, _doorbell, mut client, kept) = channel(ChannelGeometry::new(OPS, 32).unwrap());
    drop(first);
    let disk = Disk::new(OPS * RUN_PAGES);
    let done = AtomicBool::new(false);
    let mut killed = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory: Vec<Vec<_>> = (0..OPS).map(|_| pages(RUN_PAGES, 0)).collect();
            let lists: Vec<_> = memory.iter_mut().map(|all| pieces(all)).collect();
            for round in 0..3000u64 {
                let write = round % 2 == 0;
                let seed = |op: usize| (round / 2) * 1000 + op as u64 * 100;
                for op in 0..OPS {
                    let seed = if write { seed(op) } else { 1 };
                    memory[op].copy_from_slice(&pages(RUN_PAGES, seed));
                    // SAFETY: pages and lists outlive the operations, which complete below.
                    unsafe { client.begin(op, write, &lists[op], (op * RUN_PAGES * PAGE) as u64) };
                }
                client.flush();
                for _ in 0..OPS {
                    let (op, result) = client.reap(true).unwrap();
                    assert_eq!(result as usize, RUN_PAGES * PAGE);
                    assert!(memory[op] == pages(RUN_PAGES, seed(op)));
                }
                assert_eq!(client.reap(true), None);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let pid = serve_in_a_child(&kept, &disk);
            std::thread::sleep(Duration::from_micros(1500 + 700 * (killed % 5)));
            kill(pid);
            killed += 1;
        }
    });
    assert!(killed > 3, "{killed}");
}

#[test]
fn operations_wait_for_a_successor_and_fail_once_there_will_be_no_other() {
    let (server, _doorbell, mut client, kept) = channel(ChannelGeometry::new(OPS, 32).unwrap());
    let has_successor = Arc::new(AtomicBool::new(true));
    client.fail_without(has_successor.clone());
    let mut memory = pages(1, 0);
    let list = pieces(&mut memory);
    // SAFETY: the page outlives the operations, which complete below.
    unsafe { client.begin(3, false, &list, 0) };
    client.flush();
    drop((server, kept));
    let lost = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        has_successor.store(false, Ordering::Release);
    });
    let failed = -rustix::io::Errno::PIPE.raw_os_error();
    assert_eq!(client.reap(true), Some((3, failed)));
    lost.join().unwrap();
}

#[test]
fn operations_of_a_server_without_a_successor_fail_with_it() {
    let (server, _doorbell, mut client, kept) = channel(ChannelGeometry::new(OPS, 32).unwrap());
    client.fail_without(Arc::default());
    let mut memory = pages(1, 0);
    let list = pieces(&mut memory);
    // SAFETY: the page outlives the operations, which complete below.
    unsafe { client.begin(3, false, &list, 0) };
    client.flush();
    drop((server, kept));
    let failed = -rustix::io::Errno::PIPE.raw_os_error();
    assert_eq!(client.reap(true), Some((3, failed)));
    assert_eq!(client.reap(true), None);
}

#[test]
fn requests_that_a_server_left_are_served_in_the_order_of_submission() {
    let (mut first, _doorbell, mut client, kept) = channel(ChannelGeometry::new(OPS, 32).unwrap());
    let mut memory = pages(1, 0);
    let list = pieces(&mut memory);
    for op in [4, 1, 3, 0, 2] {
        // SAFETY: the page outlives the operations, which complete below.
        unsafe { client.begin(op, true, &list, op as u64 * PAGE as u64) };
    }
    client.flush();
    let taken: Vec<_> = (0..3)
        .map(|_| first.take().unwrap().unwrap().slot)
        .collect();
    assert_eq!(taken, [4, 1, 3]);
    assert!(first.complete(1, PAGE as i32));
    drop(first);
    let (mut second, _) = kept.attach_successor();
    assert!(readable(client.poll_fd()));
    let mut left = Vec::new();
    while let Some(request) = second.take().unwrap() {
        assert_eq!(request.offset, u64::from(request.slot) * PAGE as u64);
        left.push(request.slot);
        assert!(second.complete(request.slot, PAGE as i32));
    }
    assert_eq!(left, [4, 3, 0, 2]);
    second.notify_completions();
    let mut completed: Vec<_> = std::iter::from_fn(|| client.reap(false)).collect();
    completed.sort();
    assert!(completed.into_iter().eq((0..5).map(|op| (op, PAGE as i32))));
}

#[test]
fn a_client_waits_for_a_later_server() {
    let (first, _doorbell, mut client, kept) = channel(ChannelGeometry::for_depth(2));
    drop(first);
    let disk = Disk::new(4);
    let mut pid = 0;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut memory = pages(1, 9);
            transfer(&mut client, true, &mut memory, 2)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        pid = serve_in_a_child(&kept, &disk);
        assert_eq!(waits.join().unwrap(), PAGE as i32);
    });
    kill(pid);
}

#[test]
fn forged_memory_is_refused_before_it_is_touched() {
    let bytes = ChannelGeometry::for_depth(4).bytes() as u64;
    let bell = || {
        let (_server, ends) = create(ChannelGeometry::for_depth(4)).unwrap();
        ends.server_bell
    };
    let refused = |fd: OwnedFd| ChannelServer::attach(fd, bell()).unwrap_err().to_string();
    let memfd = |size: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("forged", flags).unwrap();
        ftruncate(&fd, size).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    // A fault in huge pages may find no free huge page.
    let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    match memfd_create("forged", huge) {
        Ok(fd) => {
            ftruncate(&fd, 2 << 20).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            assert!(refused(fd).contains("no memfd"));
        }
        Err(errno) => eprintln!("huge pages are not tried: {errno}"),
    }
    let file = tempfile();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert!(refused(file.into()).contains("no memfd"));
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    assert!(refused(pipe).contains("no memfd"));
    assert!(refused(memfd(bytes, SealFlags::empty())).contains("not sealed"));
    assert!(refused(memfd(bytes, SealFlags::GROW | SealFlags::SEAL)).contains("not sealed"));
    assert!(refused(memfd(bytes, seals | SealFlags::WRITE)).contains("not sealed"));
    assert!(refused(memfd(0, seals)).contains("has 0 bytes"));
    assert!(refused(memfd(1 << 40, seals)).contains("bytes"));
    assert!(refused(memfd(bytes, seals)).contains("not one of this version"));

    // A header that requires more than the memory has.
    let (_server, ends) = create(ChannelGeometry::new(4, 64).unwrap()).unwrap();
    for (at, value, part) in [
        (12, 200u32, "its header requires"),
        (16, 512, "its header requires"),
        (12, 0, "expected 1 to 256"),
        (16, 1 << 20, "expected 1 to 256"),
        (8, 2, "version 2"),
    ] {
        let mut before = [0; 4];
        rustix::io::pread(&ends.memory, &mut before, at).unwrap();
        rustix::io::pwrite(&ends.memory, &value.to_ne_bytes(), at).unwrap();
        let error = refused(duplicate(&ends.memory));
        assert!(error.contains(part), "{error}");
        rustix::io::pwrite(&ends.memory, &before, at).unwrap();
    }
    ChannelServer::attach(duplicate(&ends.memory), bell()).unwrap();
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    assert!(ChannelServer::attach(duplicate(&ends.memory), pipe).is_err());
}

fn tempfile() -> std::fs::File {
    // A file of a file system, without a name.
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE;
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::open(std::env::temp_dir(), flags, mode)
        .unwrap()
        .into()
}

#[test]
fn a_channel_has_one_client() {
    let (_server, doorbell, mut client, kept) = channel(ChannelGeometry::for_depth(2));
    let mut memory = pages(1, 0);
    let list = pieces(&mut memory);
    // SAFETY: the page outlives the test; no server completes.
    unsafe { client.begin(0, true, &list, 0) };
    let (_other, ends) = create(ChannelGeometry::for_depth(2)).unwrap();
    let second = ChannelClient::attach(kept.memory, doorbell.share().unwrap(), ends.bell);
    assert!(second.unwrap_err().to_string().contains("another client"));
}

#[test]
fn dropping_the_copy_in_a_forks_child_closes_no_descriptor() {
    let (mut server, doorbell, mut client, kept) = channel(ChannelGeometry::for_depth(2));
    let (disk, end) = (Disk::new(4), AtomicBool::new(false));
    // SAFETY: the child drops its copy and checks descriptors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        use rustix::fd::AsRawFd;
        let bell = client.poll_fd().as_raw_fd();
        drop(client);
        // SAFETY: a query of a number; and the child's end.
        unsafe { libc::_exit(i32::from(libc::fcntl(bell, libc::F_GETFD) < 0)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&mut server, &doorbell, &disk, &end));
        assert_eq!(
            transfer(&mut client, true, &mut pages(1, 3), 1),
            PAGE as i32
        );
        stop(&end, &kept);
    });
}

#[test]
fn descriptors_closed_under_a_client_fail_its_operations() {
    let doorbell = Doorbell::new().unwrap();
    let (server, ends) = create(ChannelGeometry::for_depth(2)).unwrap();
    let ClientFds { memory, bell, .. } = ends;
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    // A pipe without a reader stands for a doorbell whose number names another file by now.
    let mut client = ChannelClient::attach(memory, writer, bell).unwrap();
    assert!(server.arm());
    let mut memory = pages(1, 0);
    assert_eq!(transfer(&mut client, true, &mut memory, 0), -libc::EPIPE);
    assert_eq!(transfer(&mut client, true, &mut memory, 0), -libc::EPIPE);
    assert!(!readable(doorbell.as_fd()));
}
