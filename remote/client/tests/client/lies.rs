//! A server that lies, beside an honest one and alone.

use crate::interposer::{Direction, Verdict};
use crate::{EIO, PagingServer, is_create, space_on};
use remote_policy::identity::PageNumber;
use remote_wire::control::{ControlReply, decode, encode};
use remote_wire::{Header, Kind, Status};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wired::PAGE;

type Lie = fn(&mut Header, &mut Vec<u8>) -> Verdict;

/// A frame of a kind in place of a reply.
fn replace(header: &mut Header, body: &mut Vec<u8>, kind: Kind, pages: u16, len: usize) -> Verdict {
    (header.kind, header.pages) = (kind, pages);
    *body = vec![0; len];
    Verdict::Forward
}

fn error(header: &mut Header, body: &mut Vec<u8>, status: u16) -> Verdict {
    replace(header, body, Kind::ErrorReply, status, 20)
}

/// Changes the versions of a reply to a read.
fn reversion(header: &Header, body: &mut [u8], change: fn(u64) -> u64) -> Verdict {
    let versions = &mut body[..usize::from(header.pages) * size_of::<u64>()];
    for bytes in versions.as_chunks_mut::<8>().0 {
        *bytes = change(u64::from_le_bytes(*bytes)).to_le_bytes();
    }
    Verdict::Forward
}

/// What may come instead of a right reply, whatever was asked.
const REPLIES: [(&str, Lie); 14] = [
    ("silence", |_, _| Verdict::Drop),
    ("half a frame, then silence", |_, _| Verdict::Half),
    ("half a frame, then the end", |_, _| Verdict::HalfAndClose),
    ("the end of the connection", |_, _| Verdict::Close),
    ("bytes that are no frame", |_, _| Verdict::Garbage),
    ("the reply to another request", |header, _| {
        header.request ^= 1;
        Verdict::Forward
    }),
    ("a reply about another page", |header, _| {
        header.page = PageNumber(header.page.0 + 1);
        Verdict::Forward
    }),
    ("a reply about another object", |header, _| {
        header.object.number += 1;
        Verdict::Forward
    }),
    ("a request", |header, body| {
        replace(header, body, Kind::Read, 1, 0)
    }),
    ("the reply to a discard", |header, body| {
        replace(header, body, Kind::DiscardReply, 1, 0)
    }),
    ("busy for ever", |header, body| {
        error(header, body, Status::Busy as u16)
    }),
    ("an unknown status", |header, body| error(header, body, 999)),
    ("no such permit", |header, body| {
        error(header, body, Status::NoPermit as u16)
    }),
    ("no such object", |header, body| {
        error(header, body, Status::NoObject as u16)
    }),
];

/// Replies to a read that are not the pages that were written.
const PAGES: [(&str, Lie); 7] = [
    ("an older version", |header, body| {
        reversion(header, body, |version| version - 1)
    }),
    ("no version", |header, body| reversion(header, body, |_| 0)),
    ("a version that no write had", |header, body| {
        reversion(header, body, |version| version + 100)
    }),
    ("the version of a write of other pages", |header, body| {
        reversion(header, body, |version| version + 1)
    }),
    ("the highest version", |header, body| {
        reversion(header, body, |_| u64::MAX)
    }),
    ("the contents of another page", |header, body| {
        body[usize::from(header.pages) * size_of::<u64>()..].fill(9);
        Verdict::Forward
    }),
    ("one bit that is wrong", |_, body| {
        if let Some(byte) = body.last_mut() {
            *byte ^= 1;
        }
        Verdict::Forward
    }),
];

/// Longer than a server is waited for, and much less than requests are.
const LONG: Duration = Duration::from_secs(14);

/// Cases at a time, of all tests: each has a client and two servers that poll.
const AT_ONCE: usize = 4;
static TURN: Mutex<()> = Mutex::new(());

/// Runs each case in a thread of its own, since they wait, a few at a time.
fn each(lies: &[(&'static str, Lie)], case: fn(&str, Lie)) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for few in lies.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let run = |(name, lie): &(&'static str, Lie)| {
                let (name, lie) = (*name, *lie);
                (name, scope.spawn(move || case(name, lie)))
            };
            let cases: Vec<_> = few.iter().map(run).collect();
            for (name, case) in cases {
                assert!(case.join().is_ok(), "{name}");
            }
        });
    }
}

/// Has a server lie in all replies of a kind.
fn lie_always(server: &PagingServer, kind: Kind, lie: Lie) {
    server
        .interposer
        .set(move |direction, header, body| match direction {
            Direction::ToClient if header.kind == kind => lie(header, body),
            _ => Verdict::Forward,
        });
}

/// Reads and writes go on, right and in time, beside a server whose every reply of `kind` is a lie.
fn beside_an_honest_one(kind: Kind, name: &str, lie: Lie) {
    // The liar is the first of two equal servers, and the nearest.
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut space = space_on(&servers);
    space.write(0, 8, 1).unwrap();
    // The last version is another page's.
    space.write(8, 1, 7).unwrap();
    lie_always(&servers[0], kind, lie);
    let begun = Instant::now();
    for round in 2..6 {
        assert_eq!(space.read(0, 4), Ok(vec![round - 1; 4]), "{name}");
        space.write(0, 4, round).unwrap();
        assert_eq!(space.read(4, 5), Ok(vec![1, 1, 1, 1, 7]), "{name}");
    }
    let elapsed = begun.elapsed();
    assert!(elapsed < LONG, "{name}: {elapsed:?}");
}

#[test]
fn beside_an_honest_server_no_reply_to_a_read_is_a_wrong_page_or_an_error() {
    each(&REPLIES, |name, lie| {
        beside_an_honest_one(Kind::ReadReply, name, lie)
    });
    each(&PAGES, |name, lie| {
        beside_an_honest_one(Kind::ReadReply, name, lie)
    });
}

#[test]
fn beside_an_honest_server_no_reply_to_a_write_loses_it_or_is_an_error() {
    each(&REPLIES, |name, lie| {
        beside_an_honest_one(Kind::WriteReply, name, lie)
    });
}

#[test]
fn a_reply_to_a_write_of_another_version_acknowledges_none() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 4, 1).unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let of_rule = Arc::clone(&written);
    server.interposer.set(move |direction, header, _| {
        if direction == Direction::ToServer && header.kind == Kind::Write {
            of_rule.fetch_add(1, Ordering::Relaxed);
        }
        // It was lost, and the reply is to the write before.
        if header.kind == Kind::WriteReply && of_rule.load(Ordering::Relaxed) == 1 {
            header.version.0 -= 1;
        }
        Verdict::Forward
    });
    space.write(0, 4, 2).unwrap();
    assert_eq!(written.load(Ordering::Relaxed), 2, "it is sent again");
    assert_eq!(space.read(0, 4), Ok(vec![2; 4]));
}

#[test]
fn at_the_only_copy_a_page_that_was_not_written_is_an_error_and_nothing_is_lost() {
    each(&PAGES, |name, lie| {
        let server = PagingServer::start(1);
        let mut space = space_on(std::slice::from_ref(&server));
        space.write(0, 4, 1).unwrap();
        space.write(8, 1, 7).unwrap();
        lie_always(&server, Kind::ReadReply, lie);
        assert_eq!(space.read(0, 4), Err(EIO), "{name}");
        server.interposer.clear();
        assert_eq!(space.read(0, 4), Ok(vec![1; 4]), "{name}");
    });
}

#[test]
fn a_page_that_was_never_written_is_zero_whatever_a_server_sends() {
    let server = PagingServer::start(1);
    let mut space = space_on(std::slice::from_ref(&server));
    space.write(0, 2, 1).unwrap();
    server.interposer.set(|_, header, body| {
        if header.kind == Kind::ReadReply {
            let page = usize::from(header.pages) * size_of::<u64>() + 2 * PAGE;
            body[page..].fill(9);
        }
        Verdict::Forward
    });
    assert_eq!(space.read(0, 4), Ok(vec![1, 1, 0, 0]));
}

/// What a server may reply to the control requests of a client that has no object yet.
const CONTROL: [(&str, Lie); 8] = [
    ("silence", |_, _| Verdict::Drop),
    ("the end of the connection", |_, _| Verdict::Close),
    ("half a frame, then the end", |_, _| Verdict::HalfAndClose),
    ("bytes that are no message", |_, body| {
        *body = vec![0xff; 30];
        Verdict::Forward
    }),
    ("a permit for no page", |_, body| grant(body, 0)),
    ("a permit for more pages than there are", |_, body| {
        grant(body, u64::MAX)
    }),
    ("nothing but that it is done", |_, body| {
        *body = encode(&ControlReply::Done).unwrap();
        Verdict::Forward
    }),
    ("the reply to another request", |header, _| {
        header.request ^= 1;
        Verdict::Forward
    }),
];

fn grant(body: &mut Vec<u8>, pages: u64) -> Verdict {
    if let Ok(ControlReply::Permit(mut sealed)) = decode(body) {
        sealed.permit.granted_pages = pages;
        *body = encode(&ControlReply::Permit(sealed)).unwrap();
    }
    Verdict::Forward
}

#[test]
fn beside_an_honest_server_no_reply_to_a_control_request_fails_a_write() {
    each(&CONTROL, |name, lie| {
        let servers = [PagingServer::start(1), PagingServer::start(2)];
        // Its welcome is a control reply, too, and there would be no server.
        servers[0]
            .interposer
            .set(move |_, header, body| match header.kind {
                Kind::ControlReply if header.request != 0 => lie(header, body),
                _ => Verdict::Forward,
            });
        let mut space = space_on(&servers);
        let begun = Instant::now();
        space.write(0, 4, 1).unwrap();
        assert_eq!(space.read(0, 4), Ok(vec![1; 4]), "{name}");
        let elapsed = begun.elapsed();
        assert!(elapsed < LONG, "{name}: {elapsed:?}");
    });
}

#[test]
fn a_server_that_lies_about_its_capacity_gets_what_it_can_take() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    servers[0].interposer.set(|_, header, body| {
        if header.kind == Kind::ControlReply
            && let Ok(ControlReply::Welcome {
                server,
                name,
                epoch,
                lease,
                ..
            }) = decode(body)
        {
            let lendable_pages = u64::MAX;
            let lie = ControlReply::Welcome {
                server,
                name,
                epoch,
                lendable_pages,
                lease,
            };
            *body = encode(&lie).unwrap();
        }
        if header.kind == Kind::ControlReply {
            return grant(body, u64::MAX);
        }
        Verdict::Forward
    });
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

#[test]
fn a_server_that_answers_renewals_but_creates_nothing_is_not_waited_for() {
    let servers = [PagingServer::start(1), PagingServer::start(2)];
    let mut silent = None;
    servers[0]
        .interposer
        .set(move |direction, header, body| match direction {
            Direction::ToServer if is_create(header, body) => {
                silent = Some(header.request);
                Verdict::Forward
            }
            Direction::ToClient if silent == Some(header.request) => Verdict::Drop,
            _ => Verdict::Forward,
        });
    let mut space = space_on(&servers);
    space.write(0, 4, 1).unwrap();
    assert_eq!(space.read(0, 4), Ok(vec![1; 4]));
}

#[test]
fn a_server_that_is_named_twice_has_one_copy_and_loses_none() {
    let server = PagingServer::start(1);
    let other = crate::interposer::Interposer::new(server.address());
    let addresses = [server.address(), other.address];
    let mut space = crate::Space::new(&addresses, 2);
    for round in 1..4 {
        space.write(0, 4, round).unwrap();
        // What the client does by itself comes with its ticks.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(space.read(0, 4), Ok(vec![round; 4]));
    }
}
