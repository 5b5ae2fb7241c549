//! Clients that write anything at all into their channels.

mod common;

use common::*;
use iochannel::{Corrupt, RUN, Request, Server, Shape, create};
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashSet;
use std::mem::Discriminant;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bytes before the page buffers that mean anything, in words.
fn words_of(shape: Shape) -> usize {
    (shape.bytes() - shape.pages() * PAGE) / 4
}

/// The channel's memory as a client has it.
fn map(memory: impl AsFd, shape: Shape) -> &'static [AtomicU32] {
    let bytes = shape.bytes();
    let (protection, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a fresh mapping, which is left mapped until `unmap`.
    unsafe {
        let start = mmap(null, bytes, protection, MapFlags::SHARED, memory, 0).unwrap();
        std::slice::from_raw_parts(start.cast(), bytes / 4)
    }
}

fn unmap(words: &'static [AtomicU32]) {
    // SAFETY: mapped by `map`, used no more.
    unsafe { munmap(words.as_ptr().cast_mut().cast(), words.len() * 4).unwrap() };
}

// Where things lie, in words: see `shape.rs` and `slot.rs`.
const TAIL: usize = 384 / 4;
const NUMBERS: usize = 1024 / 4;
const SLOT: usize = PAGE / 4;
const NEXT_SLOT: usize = 128 / 4;
/// In a slot, after its state.
const TICKET: usize = 1;
const OFFSET: usize = 2;
const OP: usize = 4;
const COUNT: usize = 5;
const PAGES: usize = 6;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Numbers that mean something more often than chance would have it.
    fn telling(&mut self) -> u32 {
        match self.next() % 4 {
            0 => self.next() as u32,
            1 => (self.next() % 3) as u32,
            2 => (self.next() % 300) as u32,
            _ => (self.next() % 40) as u32,
        }
    }
}

/// Whether a request is one that can be served.
fn is_whole(request: &Request, shape: Shape) -> bool {
    let pieces = request.pieces();
    let aligned = pieces
        .iter()
        .all(|piece| (piece.start as usize).is_multiple_of(PAGE) && piece.len.is_multiple_of(PAGE));
    let len: usize = pieces.iter().map(|piece| piece.len).sum();
    aligned
        && len == request.len()
        && (PAGE..=RUN * PAGE).contains(&len)
        && usize::from(request.slot) < shape.slots()
        && request.offset.is_multiple_of(PAGE as u64)
        && request.offset + len as u64 <= i64::MAX as u64
}

#[test]
fn random_words_make_no_request_outside_the_channel() {
    let shape = Shape::new(8, 48).unwrap();
    let (first, ends) = create(shape).unwrap();
    drop(first);
    let words = map(&ends.memory, shape);
    let header: [u32; 5] = std::array::from_fn(|at| words[at].load(Ordering::Relaxed));
    let (end, mut given) = (AtomicBool::new(false), 0);
    let mut refused = HashSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(42);
            while !end.load(Ordering::Relaxed) {
                scribble(&mut rng, words, shape);
            }
        });
        // Servers one after the other, each until it is lied to.
        let mut rng = Rng(43);
        for _ in 0..20_000 {
            // A header that passes, so that the rings are come to.
            for (word, value) in words.iter().zip(header) {
                word.store(value, Ordering::Relaxed);
            }
            let bell = duplicate(&ends.server_bell);
            let Ok(mut server) = Server::attach(duplicate(&ends.memory), bell) else {
                continue;
            };
            given += serve_until_lied_to(&mut server, &mut rng, words, &mut refused);
        }
        end.store(true, Ordering::Relaxed);
    });
    unmap(words);
    let kinds = refused.len();
    assert!(given > 1000 && kinds >= 6, "{given} requests, {kinds} lies");
}

/// Serves somehow, and returns how many requests there were.
fn serve_until_lied_to(
    server: &mut Server,
    rng: &mut Rng,
    words: &[AtomicU32],
    refused: &mut HashSet<Discriminant<Corrupt>>,
) -> u32 {
    let (shape, mut given, mut held) = (server.shape(), 0, Vec::new());
    let mut span = (usize::MAX, 0);
    for round in 0..200 {
        scribble(rng, words, shape);
        match server.take() {
            Ok(Some(request)) => {
                assert!(is_whole(&request, shape), "{request:?}");
                assert!(!held.contains(&request.slot), "served twice at once");
                for piece in request.pieces() {
                    let start = piece.start as usize;
                    span = (span.0.min(start), span.1.max(start + piece.len));
                }
                assert!(span.1 - span.0 <= shape.pages() * PAGE, "one channel's");
                held.push(request.slot);
                given += 1;
            }
            Ok(None) => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused.insert(std::mem::discriminant(&error));
                return given;
            }
        }
        assert!(server.in_flight() == held.len() && held.len() <= shape.slots());
        if round % 2 == 0 && !held.is_empty() {
            assert!(server.finish(held.remove(0), -5));
            server.announce();
        }
        server.arm();
        server.disarm();
    }
    given
}

fn scribble(rng: &mut Rng, words: &[AtomicU32], shape: Shape) {
    let set = |at: usize, value: u32| words[at].store(value, Ordering::Relaxed);
    let number = rng.next() as usize % shape.slots();
    let slot = SLOT + number * NEXT_SLOT;
    let tail = words[TAIL].load(Ordering::Relaxed);
    match rng.next() % 8 {
        // Anything anywhere.
        0 => set(rng.next() as usize % words_of(shape), rng.telling()),
        // Something like a request, put where the next one belongs.
        1..=5 => {
            set(slot + OFFSET, rng.telling().wrapping_mul(PAGE as u32));
            set(slot + OFFSET + 1, (rng.next() % 2) as u32 * rng.telling());
            set(slot + OP, rng.telling() % 3);
            set(slot + COUNT, rng.telling() % 36);
            // Two page buffers in each word, the first seldom past the last.
            (PAGES..PAGES + RUN / 2).for_each(|at| set(slot + at, rng.telling() % 48));
            set(slot + PAGES, rng.telling() % 52);
            set(slot + TICKET, tail);
            set(slot, 1);
            set(NUMBERS + tail as usize % 256, number as u32);
            set(TAIL, tail.wrapping_add(1));
        }
        // Back to something that may be consistent, or on.
        6 => set(TAIL, tail.wrapping_sub(1)),
        _ => set(TAIL, tail.wrapping_add(rng.telling() % 3)),
    }
}

#[test]
fn each_lie_is_told_apart() {
    let shape = Shape::new(8, 48).unwrap();
    let lie = |at: usize, value: u32| {
        let (mut server, ends) = create(shape).unwrap();
        let words = map(&ends.memory, shape);
        for (at, value) in [(SLOT, 1), (SLOT + COUNT, 1), (TAIL, 1), (at, value)] {
            words[at].store(value, Ordering::Relaxed);
        }
        let error = server.take().unwrap_err();
        assert_eq!(server.take().unwrap_err(), error, "it does not go away");
        unmap(words);
        error
    };
    let (slot, slots) = (0, 8);
    for pending in [9, u32::MAX] {
        assert_eq!(lie(TAIL, pending), Corrupt::Overrun { pending, slots });
    }
    assert_eq!(lie(NUMBERS, 8), Corrupt::Slot { slot: 8, slots });
    assert_eq!(lie(NUMBERS, 3), Corrupt::State { slot: 3 });
    assert_eq!(lie(SLOT, 2), Corrupt::State { slot });
    assert_eq!(lie(SLOT + TICKET, 7), Corrupt::State { slot });
    assert_eq!(lie(SLOT + OP, 2), Corrupt::Op { slot, op: 2 });
    for count in [0, 33] {
        let said = Corrupt::Count { slot, count };
        assert_eq!(lie(SLOT + COUNT, count as u32), said);
    }
    let (page, pages) = (48, 48);
    assert_eq!(lie(SLOT + PAGES, 48), Corrupt::Page { slot, page, pages });
    let offset = 512;
    assert_eq!(lie(SLOT + OFFSET, 512), Corrupt::Offset { slot, offset });
    let offset = 1 << 63;
    assert_eq!(
        lie(SLOT + OFFSET + 1, 1 << 31),
        Corrupt::Offset { slot, offset }
    );
}

#[test]
fn a_slot_asked_again_before_its_answer_is_refused() {
    let shape = Shape::new(8, 48).unwrap();
    let (mut server, ends) = create(shape).unwrap();
    let words = map(&ends.memory, shape);
    let ask = |ticket: u32| {
        let slot = [(SLOT + COUNT, 1), (SLOT + TICKET, ticket), (SLOT, 1)];
        for (at, value) in slot.into_iter().chain([(TAIL, ticket + 1)]) {
            words[at].store(value, Ordering::Relaxed);
        }
    };
    ask(0);
    server.take().unwrap().unwrap();
    ask(1);
    assert_eq!(server.take().unwrap_err(), Corrupt::InFlight { slot: 0 });
    assert!(server.finish(0, 0));
    unmap(words);
}

#[test]
fn a_hole_punched_into_the_channel_is_only_empty() {
    let shape = Shape::new(8, 48).unwrap();
    let (mut server, ends) = create(shape).unwrap();
    let words = map(&ends.memory, shape);
    for (at, value) in [(SLOT + COUNT, 1), (SLOT, 1), (TAIL, 1)] {
        words[at].store(value, Ordering::Relaxed);
    }
    server.take().unwrap().unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&ends.memory, flags, 0, shape.bytes() as u64).unwrap();
    assert!(ftruncate(&ends.memory, 0).is_err(), "it cannot shrink");
    assert!(server.take().is_err(), "the FIFO ran backwards");
    server.announce();
    unmap(words);
}
