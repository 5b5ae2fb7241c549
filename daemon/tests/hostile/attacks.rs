//! Attacks of hostile clients, each in a process of its own.

use crate::role::count;
use host::seqpacket;
use iochannel::{ChannelClient, IoVec};
use protocol::contract_spec::FrameSpec;
use protocol::{DaemonEvent, ResumeToken, TenantRequest, decode, encode};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::net::{TcpListener, TcpStream};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::time::{Duration, Instant};
use tenant::ContractRequest;

/// Messages after each of which the process counts them for the test.
const BATCH: u64 = 500;
/// Messages that one process sends.
const MESSAGES: u64 = 25_000;

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }
}

pub fn connect(path: &Path) -> OwnedFd {
    try_connect(path).unwrap()
}

/// Connects; `None` where no daemon listens.
pub fn try_connect(path: &Path) -> Option<OwnedFd> {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(unix, packets, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(socket)
}

fn send(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    seqpacket::send(to, bytes, fds, SendFlags::DONTWAIT).is_ok()
}

pub fn send_request(to: &OwnedFd, request: &TenantRequest, fds: &[BorrowedFd<'_>]) -> bool {
    send(to, &encode(request).unwrap(), fds)
}

/// A request for a contract with terms given as texts, and `swap` MiB of swap.
pub fn contract_request(name: &str, frames: &str, disk: &str, swap: u64) -> ContractRequest {
    ContractRequest {
        name: name.into(),
        frames: Some(frames.parse().unwrap()),
        disk: Some(disk.parse().unwrap()),
        swap: Some(swap << 20),
        place: None,
    }
}

/// The message that requests a contract.
pub fn join(resume_token: ResumeToken, request: ContractRequest) -> TenantRequest {
    let ContractRequest {
        name,
        frames,
        disk,
        swap,
        place,
    } = request;
    TenantRequest::Join {
        resume_token,
        name,
        frames,
        disk,
        swap,
        place,
    }
}

pub fn receive_event(from: &OwnedFd) -> Option<(DaemonEvent, Vec<OwnedFd>)> {
    let message = seqpacket::receive(from, RecvFlags::empty()).ok()?;
    let event = decode(message.as_slice())?;
    Some((event, message.fds.into_iter().flatten().collect()))
}

/// Descriptors of many kinds, none of a kind that the daemon expects.
fn unexpected_descriptors() -> Vec<OwnedFd> {
    let open = |path: &str| std::fs::File::open(path).unwrap().into();
    let memory = |size, flags| {
        let fd = memfd_create("x", flags).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    };
    let (pipe, _gone) = rustix::pipe::pipe().unwrap();
    let (alone, _gone) = seqpacket::pair().unwrap();
    let semaphore = eventfd(u32::MAX, EventfdFlags::SEMAPHORE).unwrap();
    fcntl_setfl(&semaphore, OFlags::empty()).unwrap();
    let sealed = memory(64, MemfdFlags::ALLOW_SEALING);
    rustix::fs::fcntl_add_seals(&sealed, rustix::fs::SealFlags::SHRINK).unwrap();
    // SAFETY: makes an epoll, or fails.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    vec![
        open("/"),
        open("/dev/zero"),
        open("/proc/self/exe"),
        open("/proc/self/status"),
        memory(1 << 20, MemfdFlags::CLOEXEC),
        memory(0, MemfdFlags::ALLOW_SEALING),
        sealed,
        pipe,
        alone,
        semaphore,
        epoll,
        TcpListener::bind("127.0.0.1:0").unwrap().into(),
    ]
}

/// A request of any kind, with terms that cannot be granted.
fn any_request(rng: &mut Rng) -> TenantRequest {
    let number = rng.next() as u32;
    let disk = "1ms/250ms".parse().unwrap();
    match rng.below(12) {
        0 => TenantRequest::Join {
            resume_token: ResumeToken(u128::from(rng.next()).to_le_bytes()),
            name: "\u{1b}[2J\n".repeat(rng.below(40)),
            frames: Some(FrameSpec {
                g: rng.below(16) as u32,
                x: number,
            }),
            disk: Some(disk),
            swap: Some(rng.next()),
            place: None,
        },
        1 => TenantRequest::Ledger,
        2 => TenantRequest::Rejoin {
            resume_token: ResumeToken(u128::from(rng.next()).to_le_bytes()),
            channels: number,
        },
        3 => TenantRequest::Channel(number),
        4 => TenantRequest::Open {
            depth: number as u16,
            cookie: rng.next(),
        },
        5 => TenantRequest::Close(number),
        6 => TenantRequest::RevocationDone { round: rng.next() },
        7 => TenantRequest::File {
            name: "f".repeat(rng.below(300)),
            disk,
        },
        8 => TenantRequest::List,
        9 => TenantRequest::Set {
            tenant: number % 64,
            frames: Some(FrameSpec {
                g: number,
                x: rng.next() as u32,
            }),
            disk: Some("1ms/250ms".parse().unwrap()),
        },
        10 => TenantRequest::Leave,
        _ => TenantRequest::Trace { from: rng.next() },
    }
}

/// Random bytes, and messages with some of their bytes changed, in any order, with any
/// descriptors.
pub fn fuzz(path: &Path, seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let unexpected_descriptors = unexpected_descriptors();
    let mut connection = connect(path);
    for n in 1..=MESSAGES {
        let mut bytes = encode(&any_request(&mut rng)).unwrap();
        match rng.below(8) {
            0 => bytes = (0..rng.below(1500)).map(|_| rng.next() as u8).collect(),
            1 => bytes.truncate(rng.below(bytes.len() + 1)),
            2 => bytes.extend((0..rng.below(1500)).map(|_| 0)),
            3 | 4 => {
                let at = rng.below(bytes.len());
                bytes[at] = rng.next() as u8;
            }
            _ => {}
        }
        let fds = match rng.below(16) {
            0 => rng.below(253),
            1..4 => rng.below(4),
            _ => 0,
        };
        let fds: Vec<_> = (0..fds)
            .map(|_| unexpected_descriptors[rng.below(unexpected_descriptors.len())].as_fd())
            .collect();
        let sent = match fds.len() <= 16 {
            true => send(&connection, &bytes, &fds),
            false => send_many(&connection, &bytes, &fds),
        };
        if !sent || rng.below(64) == 0 {
            connection = connect(path);
        }
        while seqpacket::receive(&connection, RecvFlags::DONTWAIT).is_ok_and(|m| m.len > 0) {}
        if n % BATCH == 0 {
            count(BATCH);
        }
    }
}

/// Sends a message with more descriptors than any message of the protocol has.
fn send_many(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(to, &[rustix::io::IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// A tenant that writes random values into its ledger and its channels, rings its bells without end, and
/// reports revocations as done that it did not do. The daemon kills it for that, or it ends.
pub fn scribble(path: &Path, seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let connection = connect(path);
    let request = contract_request("scribbler", "1M+8M", "10ms/250ms", 4);
    let join = join(ResumeToken::draw().unwrap(), request);
    // A user's rate of changes is limited, so one who was disconnected lately has to wait a little.
    let (terms, bells) = loop {
        send_request(&connection, &join, &[]);
        if let Some((DaemonEvent::Admitted { terms, .. }, bells)) = receive_event(&connection) {
            break (terms, bells);
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let (_ledger, fd) = frames::Ledger::create_limited(terms.frames.x, 0, 4).unwrap();
    send_request(&connection, &TenantRequest::Ledger, &[fd.as_fd()]);
    receive_event(&connection);
    let ledger = wired::WiredMemory::attach(&fd, 4096).unwrap();
    let mut memories = Vec::new();
    for cookie in 0..4 {
        send_request(&connection, &TenantRequest::Open { depth: 8, cookie }, &[]);
        let Some((DaemonEvent::Opened { .. }, ends)) = receive_event(&connection) else {
            return;
        };
        memories.push(ends);
    }
    // First, one channel requests pages beyond the end of the swap file, which the protocol permits.
    read_beyond_end(&bells[0], &memories[0]);
    let size = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_size as usize;
    let regions: Vec<_> = memories
        .iter()
        .map(|ends| wired::WiredMemory::attach(&ends[0], size(&ends[0])).unwrap())
        .collect();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        for _ in 0..64 {
            let region = match rng.below(4) {
                0 => &ledger,
                _ => &regions[rng.below(regions.len())],
            };
            let words = 4096 / 4;
            let word = &region.slice::<std::sync::atomic::AtomicU32>(0, words)[rng.below(words)];
            let value = rng.next() as u32 >> rng.below(32);
            word.store(value, std::sync::atomic::Ordering::Relaxed);
        }
        for bell in &bells {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
        let round = rng.next();
        send_request(&connection, &TenantRequest::RevocationDone { round }, &[]);
        send_request(&connection, &TenantRequest::Close(rng.below(8) as u32), &[]);
        while seqpacket::receive(&connection, RecvFlags::DONTWAIT).is_ok_and(|m| m.len > 0) {}
    }
}

/// Requests pages that the swap file does not have, and checks that the requests fail.
fn read_beyond_end(doorbell: &OwnedFd, ends: &[OwnedFd]) {
    let own = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap();
    let mut client = ChannelClient::attach(own(&ends[0]), own(doorbell), own(&ends[1])).unwrap();
    let mut page = vec![0u8; 4096];
    let piece = IoVec {
        start: page.as_mut_ptr(),
        len: page.len(),
    };
    for offset in [4 << 20, 1 << 40] {
        // SAFETY: the page stays until the request is completed.
        unsafe { client.begin(0, true, &[piece], offset) };
        client.flush();
        assert!(client.reap(true).unwrap().1 < 0);
    }
}

/// Connects ten thousand times, and keeps up to a thousand of the connections.
pub fn crowd(path: &Path) {
    let mut kept = Vec::new();
    for n in 0..10_000 {
        let connection = connect(path);
        if n % 8 == 0 && kept.len() < 1000 {
            kept.push(connection);
        }
    }
}

/// Sends requests and never reads.
pub fn never_read(path: &Path) {
    let connections: Vec<_> = (0..16).map(|_| connect(path)).collect();
    for n in 0..20_000 {
        send_request(
            &connections[n % connections.len()],
            &TenantRequest::List,
            &[],
        );
    }
}

/// Sends sockets whose close blocks for an hour: in messages of the protocol, and in one with too many descriptors.
pub fn linger(path: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let full = || -> OwnedFd {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream_ref = &stream;
        while std::io::Write::write(&mut stream_ref, &[0; 65536]).is_ok() {}
        sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
        // Closing a nonblocking socket would not wait.
        stream.set_nonblocking(false).unwrap();
        stream.into()
    };
    let connection = connect(path);
    for _ in 0..3 {
        let last = full();
        send_request(&connection, &TenantRequest::List, &[last.as_fd()]);
        drop_elsewhere(last);
    }
    let last = full();
    send_many(&connection, b"x", &[last.as_fd(); 253]);
    drop_elsewhere(last);
    let last = full();
    send_request(&connection, &TenantRequest::List, &[last.as_fd()]);
    drop_elsewhere(last);
    drop(connection);
    let begin = Instant::now();
    // The daemon still has to serve another connection.
    let other = connect(path);
    send_request(&other, &TenantRequest::List, &[]);
    assert!(receive_event(&other).is_some());
    count(begin.elapsed().as_millis() as u64);
    // SAFETY: ends the process at once, without the destructors that would close the blocking sockets.
    unsafe { libc::_exit(0) };
}

/// Closes a descriptor in another thread.
fn drop_elsewhere(fd: OwnedFd) {
    std::thread::spawn(move || drop(fd));
}

/// Requests all frames and nearly all of the disk, and counts 1 once it is admitted.
pub fn whole(path: &Path) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        let connection = connect(path);
        let request = contract_request("whole", "64M", "10ms/250ms", 96);
        let join = join(ResumeToken::draw().unwrap(), request);
        send_request(&connection, &join, &[]);
        if let Some((DaemonEvent::Admitted { .. }, _)) = receive_event(&connection) {
            return count(1);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
