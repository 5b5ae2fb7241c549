//! Frames over real sockets: whole, in pieces, and garbage.

use proptest::prelude::*;
use remote_policy::identity::{Generation, HostId, ObjectId, PageNumber, Version};
use selfpage_remote_wire::{
    FrameReader, FrameWriter, HEADER, Header, Kind, Link, MAX_BODY, NoRoom,
};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use wired::PAGE;

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn write_of(pages: u16, request: u32) -> (Header, Vec<u8>) {
    let header = Header {
        kind: Kind::Write,
        pages,
        request,
        object: ObjectId {
            client: HostId(7),
            number: 1,
        },
        page: PageNumber(request.into()),
        version: Version(3),
        generation: Generation(1),
    };
    (header, vec![request as u8; usize::from(pages) * PAGE])
}

/// All frames that arrive until the stream ends or fails.
fn receive_all(link: &mut Link) -> (Vec<(Header, Vec<u8>)>, bool) {
    let mut reader = FrameReader::new().unwrap();
    let mut frames = Vec::new();
    loop {
        let is_open = reader.fill(link).unwrap();
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push((frame.header, frame.body.to_vec())),
                Ok(None) => break,
                Err(_) => return (frames, false),
            }
        }
        if !is_open {
            return (frames, true);
        }
        std::thread::yield_now();
    }
}

#[test]
fn frames_larger_than_the_buffers_of_a_socket_arrive_whole_and_in_order() {
    let (near, far) = sockets();
    let (mut near, mut far) = (Link::plain(near).unwrap(), Link::plain(far).unwrap());
    let sent: Vec<_> = (0..64).map(|n| write_of(1 + n as u16 % 32, n)).collect();
    let copy = sent.clone();
    let sender = std::thread::spawn(move || {
        let mut writer = FrameWriter::new(2).unwrap();
        for (header, body) in &copy {
            while writer.push(header, body) == Err(NoRoom) {
                writer.flush(&mut near).unwrap();
            }
        }
        while !writer.flush(&mut near).unwrap() {
            std::thread::yield_now();
        }
    });
    let (received, is_whole) = receive_all(&mut far);
    sender.join().unwrap();
    assert!(is_whole);
    assert_eq!(received, sent);
}

#[test]
fn a_frame_that_arrives_byte_by_byte_is_found_once() {
    let (mut near, far) = sockets();
    let mut far = Link::plain(far).unwrap();
    let (header, body) = write_of(1, 9);
    let bytes = [&header.encode(&body)[..], &body].concat();
    let sender = std::thread::spawn(move || {
        near.set_nodelay(true).unwrap();
        bytes
            .iter()
            .for_each(|byte| near.write_all(&[*byte]).unwrap());
    });
    let (received, is_whole) = receive_all(&mut far);
    sender.join().unwrap();
    assert!(is_whole);
    assert_eq!(received, [write_of(1, 9)]);
}

#[test]
fn a_writer_that_is_full_says_so_and_loses_nothing() {
    let mut writer = FrameWriter::new(1).unwrap();
    let (header, body) = write_of(32, 0);
    writer.push(&header, &body).unwrap();
    let queued = writer.queued();
    assert_eq!(writer.push(&header, &body), Err(NoRoom));
    assert!(!writer.has_room(MAX_BODY));
    assert_eq!((queued, writer.queued()), (HEADER + body.len(), queued));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_after_valid_frames_is_refused_and_the_frames_are_not(
        frames in 0..3u32,
        garbage in prop::collection::vec(any::<u8>(), HEADER..4 * HEADER),
    ) {
        prop_assume!(garbage[..4] != *b"SPRP");
        let (mut near, far) = sockets();
        let mut far = Link::plain(far).unwrap();
        for n in 0..frames {
            let (header, body) = write_of(1, n);
            near.write_all(&header.encode(&body)).unwrap();
            near.write_all(&body).unwrap();
        }
        near.write_all(&garbage).unwrap();
        drop(near);
        let (received, is_whole) = receive_all(&mut far);
        prop_assert!(!is_whole);
        prop_assert_eq!(received, (0..frames).map(|n| write_of(1, n)).collect::<Vec<_>>());
    }
}
