//! A small display server: it reads the shared buffers of hundreds of client processes for each
//! frame that it composes.
//!
//!     cargo run --release -p space --example display_server [CLIENTS] [FRAMES]
//!
//! Two clients truncate their buffers in the middle. The server composes by client views: it goes
//! on, learns which clients did it, and drops them. Beside it the same server by plain `mmap`, with
//! the clients behaving, and with the two that truncate: then it is killed.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{PAGE, in_child, status_kb};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use space::{AddressSpace, MemoryObject, Rights};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// Bytes of a client's buffer: 128 by 128 pixels.
const BUFFER: usize = 64 << 10;

struct Client {
    pid: i32,
    socket: OwnedFd,
    object: MemoryObject,
}

/// The client: draws into its buffer, sends it, and truncates it when it receives a byte.
fn client(socket: &OwnedFd, colour: u8) {
    let space = AddressSpace::without_domain(6).expect("a space");
    let object = MemoryObject::create(BUFFER as u64).expect("a buffer");
    let flags = space::MapFlags::new(Rights::READ | Rights::WRITE);
    let at = space.map(None, BUFFER, &object, 0, flags).expect("mapped");
    // SAFETY: this process's own buffer.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(colour, BUFFER) };
    object.send(socket).expect("the server receives");
    let mut byte = [0];
    while matches!(rustix::io::read(socket, &mut byte), Ok(1)) {
        object.set_len(PAGE as u64).expect("truncated");
        rustix::io::write(socket, &byte).expect("the server waits");
    }
}

impl Client {
    fn start(number: usize) -> Self {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("sockets");
        // SAFETY: this program has one thread; the child ends by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            drop(socket);
            // The server's ends of the earlier clients' sockets: with them open those would not
            // notice its end.
            for fd in 3..theirs.as_raw_fd() {
                // SAFETY: descriptors that this process does not use.
                unsafe { libc::close(fd) };
            }
            client(&theirs, number as u8);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        drop(theirs);
        let object = MemoryObject::receive(&socket).expect("the client sends its buffer");
        Self {
            pid,
            socket,
            object,
        }
    }

    fn truncate(&self) {
        rustix::io::write(&self.socket, &[1]).expect("the client reads");
        rustix::io::read(self.socket.as_fd(), &mut [0]).expect("the client replies");
    }

    fn end(self) {
        drop(self.socket);
        // SAFETY: a child of this program.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// What composing does with a buffer: reads all of it.
fn blend(at: *const u8) -> u64 {
    let words = at.cast::<u64>();
    // SAFETY: a buffer's bytes; a client may change them, so the reads are volatile.
    (0..BUFFER / 8)
        .map(|word| unsafe { words.add(word).read_volatile() })
        .fold(0, u64::wrapping_add)
}

/// The clients that truncate in the middle of the frames.
fn bad_clients(clients: usize) -> [usize; 2] {
    [clients / 3, clients / 2]
}

fn by_views(clients: &[Client], frames: usize) {
    let before = status_kb("self", "VmPTE:");
    let space = AddressSpace::without_domain(64).expect("a space");
    let mut views: Vec<_> = clients
        .iter()
        .map(|client| space.client_view(&client.object, Rights::READ).ok())
        .collect();
    let (begin, mut sum, mut composed) = (Instant::now(), 0u64, 0);
    for frame in 0..frames {
        if frame == frames / 2 {
            bad_clients(clients.len())
                .iter()
                .for_each(|client| clients[*client].truncate());
        }
        for (number, place) in views.iter_mut().enumerate() {
            let Some(view) = place else { continue };
            let call = view.begin();
            sum = sum.wrapping_add(blend(call.translate(0, BUFFER).expect("the whole buffer")));
            if let Err(fault) = call.end() {
                println!("frame {frame}: client {number} is dropped: {fault}");
                *place = None;
            }
        }
        composed += 1;
    }
    let us = begin.elapsed().as_secs_f64() * 1e6 / frames as f64;
    let left = views.iter().flatten().count();
    println!(
        "client views: {composed} frames, {us:.0} us each, {left} clients left, page tables +{} kB, sum {sum:x}",
        status_kb("self", "VmPTE:") - before
    );
}

fn by_mmap(clients: &[Client], frames: usize, truncate: bool) {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let before = status_kb("self", "VmPTE:");
    let buffers: Vec<_> = clients
        .iter()
        // SAFETY: a fresh mapping.
        .map(|c| unsafe {
            mmap(
                std::ptr::null_mut(),
                BUFFER,
                ProtFlags::READ,
                MapFlags::SHARED,
                c.object.as_fd(),
                0,
            )
        })
        .map(|mapped| mapped.expect("mapped").cast::<u8>().cast_const())
        .collect();
    let (begin, mut sum) = (Instant::now(), 0u64);
    for frame in 0..frames {
        if truncate && frame == frames / 2 {
            bad_clients(clients.len())
                .iter()
                .for_each(|client| clients[*client].truncate());
        }
        for buffer in &buffers {
            sum = sum.wrapping_add(blend(*buffer));
        }
    }
    let us = begin.elapsed().as_secs_f64() * 1e6 / frames as f64;
    println!(
        "plain mmap: {frames} frames, {us:.0} us each, page tables +{} kB, sum {sum:x}",
        status_kb("self", "VmPTE:") - before
    );
}

/// Runs one server with clients of its own, in a process of its own.
fn run(clients: usize, server: impl FnOnce(&[Client])) -> Result<i32, i32> {
    in_child(|| {
        let clients: Vec<_> = (0..clients).map(Client::start).collect();
        server(&clients);
        clients.into_iter().for_each(Client::end);
        0
    })
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|a| a.parse().ok());
    let clients = arguments.next().unwrap_or(300usize).max(6);
    let frames = arguments.next().unwrap_or(200usize).max(2);
    println!(
        "{clients} client processes with buffers of {} KiB",
        BUFFER >> 10
    );
    let views = run(clients, |clients| by_views(clients, frames));
    println!("the server by client views {}", ended(views));
    let plain = run(clients, |clients| by_mmap(clients, frames, false));
    println!("the server by plain mmap {}", ended(plain));
    let killed = run(clients, |clients| by_mmap(clients, frames, true));
    println!(
        "the server by plain mmap, whose clients truncate, {}",
        ended(killed)
    );
    std::process::exit(i32::from(views != Ok(0) || plain != Ok(0)));
}

fn ended(result: Result<i32, i32>) -> String {
    match result {
        Ok(0) => "ended well".into(),
        Ok(status) => format!("ended with {status}"),
        Err(libc::SIGBUS) => "was killed by SIGBUS".into(),
        Err(signal) => format!("was killed by signal {signal}"),
    }
}
