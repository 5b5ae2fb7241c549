//! Clients that write arbitrary words into their channels.

mod common;

use common::*;
use fastrand::Rng;
use iochannel::{ChannelGeometry, ChannelServer, MAX_RUN, ProtocolError, Request, create};
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashSet;
use std::mem::Discriminant;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Length in words of what precedes the page buffers.
fn words_of(geometry: ChannelGeometry) -> usize {
    (geometry.bytes() - geometry.pages() * PAGE) / 4
}

/// The channel's memory as a client maps it.
fn map(memory: impl AsFd, geometry: ChannelGeometry) -> &'static [AtomicU32] {
    let bytes = geometry.bytes();
    let (protection, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a fresh mapping, which is left mapped until `unmap`.
    unsafe {
        let start = mmap(null, bytes, protection, MapFlags::SHARED, memory, 0).unwrap();
        std::slice::from_raw_parts(start.cast(), bytes / 4)
    }
}

fn unmap(words: &'static [AtomicU32]) {
    // SAFETY: mapped by `map`, no longer used.
    unsafe { munmap(words.as_ptr().cast_mut().cast(), words.len() * 4).unwrap() };
}

// Offsets in words: see `geometry.rs` and `slot.rs`.
const TAIL: usize = 384 / 4;
const NUMBERS: usize = 1024 / 4;
const SLOT: usize = PAGE / 4;
const NEXT_SLOT: usize = 128 / 4;
/// Offset in a slot, after its state.
const POSITION: usize = 1;
const OFFSET: usize = 2;
const OP: usize = 4;
const COUNT: usize = 5;
const PAGES: usize = 6;

/// Numbers that are meaningful more often than random ones.
fn meaningful(rng: &mut Rng) -> u32 {
    match rng.u32(..4) {
        0 => rng.u32(..),
        1 => rng.u32(..3),
        2 => rng.u32(..300),
        _ => rng.u32(..40),
    }
}

/// Returns true if a request can be served.
fn is_whole(request: &Request, geometry: ChannelGeometry) -> bool {
    let pieces = request.pieces();
    let aligned = pieces
        .iter()
        .all(|piece| (piece.start as usize).is_multiple_of(PAGE) && piece.len.is_multiple_of(PAGE));
    let len: usize = pieces.iter().map(|piece| piece.len).sum();
    aligned
        && len == request.len()
        && (PAGE..=MAX_RUN * PAGE).contains(&len)
        && usize::from(request.slot) < geometry.slots()
        && request.offset.is_multiple_of(PAGE as u64)
        && request.offset + len as u64 <= i64::MAX as u64
}

#[test]
fn random_words_make_no_request_outside_the_channel() {
    let geometry = ChannelGeometry::new(8, 48).unwrap();
    let (first, ends) = create(geometry).unwrap();
    drop(first);
    let words = map(&ends.memory, geometry);
    let header: [u32; 5] = std::array::from_fn(|at| words[at].load(Ordering::Relaxed));
    let (end, mut given) = (AtomicBool::new(false), 0);
    let mut refused = HashSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::with_seed(42);
            while !end.load(Ordering::Relaxed) {
                scribble(&mut rng, words, geometry);
            }
        });
        // Servers one after the other, each until a protocol error.
        let mut rng = Rng::with_seed(43);
        for _ in 0..20_000 {
            // A valid header, so that the FIFOs are reached.
            for (word, value) in words.iter().zip(header) {
                word.store(value, Ordering::Relaxed);
            }
            let bell = duplicate(&ends.server_bell);
            let Ok(mut server) = ChannelServer::attach(duplicate(&ends.memory), bell) else {
                continue;
            };
            given += serve_until_error(&mut server, &mut rng, words, &mut refused);
        }
        end.store(true, Ordering::Relaxed);
    });
    unmap(words);
    let kinds = refused.len();
    assert!(
        given > 1000 && kinds >= 6,
        "{given} requests, {kinds} kinds of errors"
    );
}

/// Serves in some way until a protocol error. Returns the number of requests.
fn serve_until_error(
    server: &mut ChannelServer,
    rng: &mut Rng,
    words: &[AtomicU32],
    refused: &mut HashSet<Discriminant<ProtocolError>>,
) -> u32 {
    let (geometry, mut given, mut held) = (server.geometry(), 0, Vec::new());
    let mut span = (usize::MAX, 0);
    for round in 0..200 {
        scribble(rng, words, geometry);
        match server.take() {
            Ok(Some(request)) => {
                assert!(is_whole(&request, geometry), "{request:?}");
                assert!(!held.contains(&request.slot), "served twice at once");
                for piece in request.pieces() {
                    let start = piece.start as usize;
                    span = (span.0.min(start), span.1.max(start + piece.len));
                }
                assert!(span.1 - span.0 <= geometry.pages() * PAGE, "one channel's");
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
        assert!(server.in_flight() == held.len() && held.len() <= geometry.slots());
        if round % 2 == 0 && !held.is_empty() {
            assert!(server.complete(held.remove(0), -5));
            server.notify_completions();
        }
        server.arm();
        server.disarm();
    }
    given
}

fn scribble(rng: &mut Rng, words: &[AtomicU32], geometry: ChannelGeometry) {
    let set = |at: usize, value: u32| words[at].store(value, Ordering::Relaxed);
    let number = rng.usize(..geometry.slots());
    let slot = SLOT + number * NEXT_SLOT;
    let tail = words[TAIL].load(Ordering::Relaxed);
    match rng.u32(..8) {
        // Any word anywhere.
        0 => set(rng.usize(..words_of(geometry)), meaningful(rng)),
        // Something like a request, at the position of the next one.
        1..=5 => {
            set(slot + OFFSET, meaningful(rng).wrapping_mul(PAGE as u32));
            set(slot + OFFSET + 1, rng.u32(..2) * meaningful(rng));
            set(slot + OP, meaningful(rng) % 3);
            set(slot + COUNT, meaningful(rng) % 36);
            // Two page buffers in each word, the first seldom past the last.
            (PAGES..PAGES + MAX_RUN / 2).for_each(|at| set(slot + at, meaningful(rng) % 48));
            set(slot + PAGES, meaningful(rng) % 52);
            set(slot + POSITION, tail);
            set(slot, 1);
            set(NUMBERS + tail as usize % 256, number as u32);
            set(TAIL, tail.wrapping_add(1));
        }
        // Back to a state that may be consistent, or on.
        6 => set(TAIL, tail.wrapping_sub(1)),
        _ => set(TAIL, tail.wrapping_add(meaningful(rng) % 3)),
    }
}

#[test]
fn each_protocol_error_is_distinguished() {
    let geometry = ChannelGeometry::new(8, 48).unwrap();
    let error_of = |at: usize, value: u32| {
        let (mut server, ends) = create(geometry).unwrap();
        let words = map(&ends.memory, geometry);
        for (at, value) in [(SLOT, 1), (SLOT + COUNT, 1), (TAIL, 1), (at, value)] {
            words[at].store(value, Ordering::Relaxed);
        }
        let error = server.take().unwrap_err();
        assert_eq!(server.take().unwrap_err(), error, "the error persists");
        unmap(words);
        error
    };
    let (slot, slots) = (0, 8);
    for pending in [9, u32::MAX] {
        assert_eq!(
            error_of(TAIL, pending),
            ProtocolError::Overrun { pending, slots }
        );
    }
    assert_eq!(error_of(NUMBERS, 8), ProtocolError::Slot { slot: 8, slots });
    assert_eq!(error_of(NUMBERS, 3), ProtocolError::State { slot: 3 });
    assert_eq!(error_of(SLOT, 2), ProtocolError::State { slot });
    assert_eq!(error_of(SLOT + POSITION, 7), ProtocolError::State { slot });
    assert_eq!(error_of(SLOT + OP, 2), ProtocolError::Op { slot, op: 2 });
    for count in [0, 33] {
        let expected = ProtocolError::Count { slot, count };
        assert_eq!(error_of(SLOT + COUNT, count as u32), expected);
    }
    let (page, pages) = (48, 48);
    assert_eq!(
        error_of(SLOT + PAGES, 48),
        ProtocolError::Page { slot, page, pages }
    );
    let offset = 512;
    assert_eq!(
        error_of(SLOT + OFFSET, 512),
        ProtocolError::Offset { slot, offset }
    );
    let offset = 1 << 63;
    assert_eq!(
        error_of(SLOT + OFFSET + 1, 1 << 31),
        ProtocolError::Offset { slot, offset }
    );
}

#[test]
fn a_slot_submitted_again_before_its_completion_is_refused() {
    let geometry = ChannelGeometry::new(8, 48).unwrap();
    let (mut server, ends) = create(geometry).unwrap();
    let words = map(&ends.memory, geometry);
    let submit = |position: u32| {
        let slot = [(SLOT + COUNT, 1), (SLOT + POSITION, position), (SLOT, 1)];
        for (at, value) in slot.into_iter().chain([(TAIL, position + 1)]) {
            words[at].store(value, Ordering::Relaxed);
        }
    };
    submit(0);
    server.take().unwrap().unwrap();
    submit(1);
    assert_eq!(
        server.take().unwrap_err(),
        ProtocolError::InFlight { slot: 0 }
    );
    assert!(server.complete(0, 0));
    unmap(words);
}

#[test]
fn a_hole_punched_into_the_channel_reads_as_zeros() {
    let geometry = ChannelGeometry::new(8, 48).unwrap();
    let (mut server, ends) = create(geometry).unwrap();
    let words = map(&ends.memory, geometry);
    for (at, value) in [(SLOT + COUNT, 1), (SLOT, 1), (TAIL, 1)] {
        words[at].store(value, Ordering::Relaxed);
    }
    server.take().unwrap().unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&ends.memory, flags, 0, geometry.bytes() as u64).unwrap();
    assert!(ftruncate(&ends.memory, 0).is_err(), "it cannot shrink");
    assert!(server.take().is_err(), "the FIFO ran backwards");
    server.notify_completions();
    unmap(words);
}
