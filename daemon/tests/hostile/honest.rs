//! The honest client: it reads a file under a contract, and must not be affected by the hostile ones.

use crate::attacks::{connect, receive_event, send_request};
use protocol::{DaemonEvent, TenantRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tenant::file::ReservedFile;

const PAGE: usize = 4096;
/// Pages of the file.
const PAGES: u64 = 1024;

/// An honest client at work.
pub struct Honest {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Duration)>,
}

impl Honest {
    /// Begins to read a new file at `path`, and to check the data.
    pub fn start(path: &Path, socket: &Path) -> Self {
        let file = File::create_new(path).unwrap();
        for page in 0..PAGES {
            file.write_all_at(&page_of(page), page * PAGE as u64)
                .unwrap();
        }
        file.sync_all().unwrap();
        let file = File::open(path).unwrap();
        let disk = "50ms/250ms,extra".parse().unwrap();
        let mut reserved = ReservedFile::open(socket, "honest", &file, disk, 4, 1).unwrap();
        let is_ending = Arc::new(AtomicBool::new(false));
        let own = is_ending.clone();
        let thread = std::thread::spawn(move || read(&mut reserved, &own));
        Self { is_ending, thread }
    }

    /// Ends it. Returns how many pages it read, all of them right, and the longest time between two.
    pub fn end(self) -> (u64, Duration) {
        self.is_ending.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

fn read(file: &mut ReservedFile, is_ending: &AtomicBool) -> (u64, Duration) {
    let depth = file.depth();
    let mut asked: Vec<u64> = (0..depth as u64).collect();
    (0..depth).for_each(|slot| file.read(slot, slot as u64 * PAGE as u64));
    let (mut reads, mut last, mut longest) = (0, Instant::now(), Duration::ZERO);
    while let Some(done) = file.wait() {
        let done = done.unwrap();
        let slot = done.slot;
        assert_eq!(done.data, page_of(asked[slot]), "page {}", asked[slot]);
        longest = longest.max(last.elapsed());
        (reads, last) = (reads + 1, Instant::now());
        if !is_ending.load(Relaxed) {
            asked[slot] = (asked[slot] + depth as u64) % PAGES;
            file.read(slot, asked[slot] * PAGE as u64);
        }
    }
    (reads, longest)
}

fn page_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / 8)
}

/// The reply to a request for a contract for a file.
fn request_file(connection: &OwnedFd, file: &File, disk: &str) -> Option<DaemonEvent> {
    let (name, disk) = ("file".into(), disk.parse().unwrap());
    let request = TenantRequest::File { name, disk };
    send_request(connection, &request, &[file.as_fd()]);
    receive_event(connection).map(|(event, _)| event)
}

/// The reason why a file that is open for writing gets no contract.
pub fn refusal_of_writable(file: &Path, socket: &Path) -> String {
    let file = File::options().read(true).write(true).open(file).unwrap();
    match request_file(&connect(socket), &file, "1ms/250ms") {
        Some(DaemonEvent::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// How many channels a contract for a file may have.
pub fn file_channels(file: &Path, socket: &Path) -> usize {
    let file = File::open(file).unwrap();
    let connection = connect(socket);
    let admitted = request_file(&connection, &file, "1ms/250ms");
    assert!(
        matches!(admitted, Some(DaemonEvent::Admitted { .. })),
        "{admitted:?}"
    );
    let open = |&cookie: &u64| {
        send_request(&connection, &TenantRequest::Open { depth: 16, cookie }, &[]);
        matches!(
            receive_event(&connection),
            Some((DaemonEvent::Opened { .. }, _))
        )
    };
    (0..100).take_while(open).count()
}

/// Closes `closed` channels, opens one, and reads late. Returns the events that arrive, in order.
pub fn read_late(file: &Path, socket: &Path, closed: u32) -> Vec<DaemonEvent> {
    let file = File::open(file).unwrap();
    let connection = connect(socket);
    request_file(&connection, &file, "1us/250ms");
    let open = TenantRequest::Open {
        depth: 16,
        cookie: 5,
    };
    let requests = (0..closed).map(TenantRequest::Close).chain([open]);
    for request in requests {
        while !send_request(&connection, &request, &[]) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Until the daemon has sent what fits.
    std::thread::sleep(Duration::from_millis(200));
    let limit = Some(Duration::from_secs(10));
    set_socket_timeout(&connection, Timeout::Recv, limit).unwrap();
    let events = std::iter::from_fn(|| receive_event(&connection).map(|(event, _)| event));
    events.take(closed as usize + 1).collect()
}

/// How many contracts are listed to a peer that reads late, where there are `contracts`.
pub fn listed(file: &Path, socket: &Path, contracts: usize) -> usize {
    let file = File::open(file).unwrap();
    let held: Vec<_> = (0..contracts)
        .map(|_| {
            let connection = connect(socket);
            let admitted = request_file(&connection, &file, "1us/250ms");
            assert!(
                matches!(admitted, Some(DaemonEvent::Admitted { .. })),
                "{admitted:?}"
            );
            connection
        })
        .collect();
    let reader = connect(socket);
    send_request(&reader, &TenantRequest::List, &[]);
    // Until the daemon has sent what fits.
    send_request(&held[0], &TenantRequest::Capacity, &[]);
    receive_event(&held[0]);
    std::thread::sleep(Duration::from_millis(100));
    std::iter::from_fn(|| receive_event(&reader))
        .take_while(|(event, _)| matches!(event, DaemonEvent::Tenant(_)))
        .count()
}

/// Ends with a contract for a file, whose connection another process keeps open until the daemon closes it.
#[expect(clippy::zombie_processes, reason = "it outlives this process")]
pub fn bequeath(file: &Path, socket: &Path) {
    std::fs::write(file, [0; PAGE]).unwrap();
    let connection = connect(socket);
    let admitted = request_file(&connection, &File::open(file).unwrap(), "1ms/250ms");
    assert!(
        matches!(admitted, Some(DaemonEvent::Admitted { .. })),
        "{admitted:?}"
    );
    let mut heir = Command::new("cat");
    heir.stdin(connection).stdout(Stdio::null());
    heir.spawn().unwrap();
}
