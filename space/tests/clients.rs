//! A server that outlives what its clients do to their memory, and knows which client did it.

mod common;

use common::{PAGE, bytes_mut, read_write, sockets};
use space::{AddressSpace, ClientView, MapFlags, MemoryObject, Rights};
use std::os::fd::{AsFd, OwnedFd};

const CLIENTS: usize = 12;
const PAGES: usize = 6;

/// Truncations, unmaps and deaths of clients; the environment has another number.
const CHANGES: usize = 3000;

fn changes() -> usize {
    let wanted = std::env::var("SELFPAGE_TEST_CHANGES").ok();
    wanted.map_or(CHANGES, |it| it.parse().expect("SELFPAGE_TEST_CHANGES"))
}

/// A client process, and what the server knows of it.
struct Client {
    pid: i32,
    socket: OwnedFd,
    object: MemoryObject,
    /// Pages that the object has.
    pages: usize,
}

/// Commands to a client.
const TRUNCATE: u8 = 1;
const UNMAP: u8 = 2;
const REMAP: u8 = 3;

/// The client: makes its memory, sends it, and does what it is told until its socket closes.
fn client(socket: OwnedFd) -> i32 {
    let object = MemoryObject::create((PAGES * PAGE) as u64).unwrap();
    object.send(&socket).unwrap();
    let space = AddressSpace::without_domain(6).unwrap();
    let map = || space.map(None, PAGES * PAGE, &object, 0, read_write());
    let mut at = Some(map().unwrap());
    let mut command = [0; 2];
    while matches!(rustix::io::read(&socket, &mut command), Ok(2)) {
        match command[0] {
            TRUNCATE => object.set_len(u64::from(command[1]) * PAGE as u64).unwrap(),
            UNMAP => at
                .take()
                .into_iter()
                .for_each(|at| space.deallocate(at, PAGES * PAGE).unwrap()),
            REMAP => {
                object.set_len((PAGES * PAGE) as u64).unwrap();
                at.get_or_insert_with(|| map().unwrap());
            }
            other => panic!("command {other}"),
        }
        rustix::io::write(&socket, &[0]).unwrap();
    }
    0
}

impl Client {
    fn start() -> Self {
        let (socket, theirs) = sockets();
        // SAFETY: the child runs `client` and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            drop(socket);
            let status = client(theirs);
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(status) };
        }
        drop(theirs);
        let object = MemoryObject::receive(&socket).unwrap();
        Self {
            pid,
            socket,
            object,
            pages: PAGES,
        }
    }

    fn command(&self, command: u8, argument: usize) {
        rustix::io::write(&self.socket, &[command, argument as u8]).unwrap();
        let mut reply = [0; 1];
        assert_eq!(rustix::io::read(self.socket.as_fd(), &mut reply), Ok(1));
    }

    fn kill(&self) {
        // SAFETY: this test's own child, which is reaped here.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(self.pid, std::ptr::null_mut(), 0), self.pid);
        }
    }
}

/// One call: a read and a write at random pages; a fault exactly where the client has no page.
fn call(view: &mut ClientView<'_>, pages: usize, random: &mut fastrand::Rng) -> bool {
    let (read, written) = (random.usize(..PAGES), random.usize(..PAGES));
    let offset = |page: usize, random: &mut fastrand::Rng| page * PAGE + random.usize(..PAGE - 8);
    let call = view.begin();
    let mut word = [1; 8];
    call.read(offset(read, random), &mut word).unwrap();
    if read >= pages {
        assert_eq!(word, [0; 8], "a scratch page is zeros");
    }
    call.write(offset(written, random), &[0; 8]).unwrap();
    let expected = [read, written].into_iter().find(|page| *page >= pages);
    match (call.end(), expected) {
        (Ok(()), None) => false,
        (Err(fault), Some(page)) => {
            assert_eq!(fault.offset / PAGE, page, "{fault}");
            true
        }
        (ended, expected) => panic!("{ended:?}, and the client lacks page {expected:?}"),
    }
}

fn serve(changes: usize) {
    let space = AddressSpace::without_domain(CLIENTS + 8).unwrap();
    let mut random = fastrand::Rng::with_seed(17);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::start()).collect();
    let rights = Rights::READ | Rights::WRITE;
    let mut views: Vec<_> = clients
        .iter()
        .map(|c| space.client_view(&c.object, rights).unwrap())
        .collect();
    let (mut faults, mut done, mut deaths) = (0, 0, 0);
    while done < changes {
        let index = random.usize(..CLIENTS);
        let client = &mut clients[index];
        let change = random.usize(..50);
        done += usize::from(change <= 37);
        match change {
            0 => {
                // Its memory is there as long as the server maps it, and a new client takes its place.
                client.kill();
                faults += usize::from(call(&mut views[index], client.pages, &mut random));
                *client = Client::start();
                views[index] = space.client_view(&client.object, rights).unwrap();
                deaths += 1;
            }
            1..=25 => {
                client.pages = random.usize(..PAGES);
                client.command(TRUNCATE, client.pages);
            }
            26..=37 => client.command(UNMAP, 0),
            // It repairs its memory, which is no change to count.
            _ => {
                client.command(REMAP, 0);
                client.pages = PAGES;
            }
        }
        let other = random.usize(..CLIENTS);
        for index in [index, other] {
            faults += usize::from(call(&mut views[index], clients[index].pages, &mut random));
        }
    }
    drop(views);
    clients.iter().for_each(Client::kill);
    println!("{changes} changes, {faults} faults, {deaths} deaths");
    assert!(faults > changes / 10 && deaths > 0);
}

#[test]
fn every_fault_is_of_the_client_that_truncated_its_memory() {
    let _alone = common::alone();
    serve(changes());
}

/// Clients that change their memory while a call runs: only they have faults.
#[test]
fn changes_during_a_call_are_faults_of_their_client_alone() {
    let _alone = common::alone();
    let space = AddressSpace::without_domain(16).unwrap();
    let objects: Vec<_> = (0..4)
        .map(|_| MemoryObject::create((PAGES * PAGE) as u64).unwrap())
        .collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut faults = [0; 4];
    std::thread::scope(|scope| {
        for object in &objects[..2] {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(3);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    object
                        .set_len((random.usize(..=PAGES) * PAGE) as u64)
                        .unwrap();
                }
            });
        }
        let rights = Rights::READ | Rights::WRITE;
        let mut views: Vec<_> = objects
            .iter()
            .map(|object| {
                loop {
                    // Where the client has truncated it again there is no view.
                    object.set_len((PAGES * PAGE) as u64).unwrap();
                    if let Ok(view) = space.client_view(object, rights) {
                        break view;
                    }
                }
            })
            .collect();
        let mut buffer = vec![0; PAGES * PAGE];
        for _ in 0..4000 {
            for (view, faults) in views.iter_mut().zip(&mut faults) {
                let call = view.begin();
                call.read(0, &mut buffer).unwrap();
                call.write(0, &buffer).unwrap();
                *faults += usize::from(call.end().is_err());
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(faults[0] + faults[1] > 0, "{faults:?}");
    assert_eq!(faults[2..], [0, 0]);
}

/// An image that is kept once: twenty processes cost one image and what they wrote.
#[test]
fn a_copy_on_write_image_costs_one_image_and_what_was_written() {
    let _alone = common::alone();
    const IMAGE: usize = 64 << 20;
    const PROCESSES: usize = 20;
    let own = 16;
    let image = MemoryObject::create(IMAGE as u64).unwrap();
    let space = AddressSpace::without_domain(64).unwrap();
    let at = space.map(None, IMAGE, &image, 0, read_write()).unwrap();
    // SAFETY: mapped, and used by this test alone.
    unsafe { bytes_mut(at, IMAGE) }.fill(3);
    let read_only = image
        .restricted_access(0, IMAGE as u64, Rights::READ)
        .unwrap();
    let before = shmem_kb();
    let (mut done, mut release) = (Vec::new(), Vec::new());
    let pids: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let (ready, tell) = std::io::pipe().unwrap();
            let (wait, go) = std::io::pipe().unwrap();
            // SAFETY: the child ends by `_exit`.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork");
            if pid == 0 {
                drop((ready, go));
                user_of_image(&read_only, IMAGE, own, tell.into(), wait.into());
            }
            done.push(ready);
            release.push(go);
            pid
        })
        .collect();
    let private: u64 = done
        .into_iter()
        .map(|mut pipe| {
            let mut word = [0; 8];
            std::io::Read::read_exact(&mut pipe, &mut word).unwrap();
            u64::from_le_bytes(word)
        })
        .sum();
    let grown = shmem_kb().saturating_sub(before);
    drop(release);
    for pid in pids {
        assert_eq!(common::wait(pid), Ok(0));
    }
    let written = (PROCESSES * own * PAGE / 1024) as u64;
    println!(
        "{PROCESSES} processes: {private} kB of their own for {written} kB written; shared memory grew by {grown} kB"
    );
    assert_eq!(private, written);
    // Other programs use shared memory, too: less than an image a process.
    assert!(grown < 2 * (IMAGE as u64 / 1024));
}

/// Maps the image, reads all of it, writes `own` pages, reports the kilobytes that are its alone,
/// and ends when the pipe closes.
fn user_of_image(image: &MemoryObject, len: usize, own: usize, tell: OwnedFd, wait: OwnedFd) -> ! {
    let space = AddressSpace::without_domain(64).unwrap();
    let flags = MapFlags {
        rights: Rights::READ | Rights::WRITE,
        copy_on_write: true,
    };
    let at = space.map(None, len, image, 0, flags).unwrap();
    for page in 0..own {
        // SAFETY: mapped, and used by this process alone.
        unsafe { bytes_mut(at + page * 2 * PAGE, 1) }.fill(9);
    }
    // SAFETY: as above.
    let sum: u64 = unsafe { common::bytes(at, len) }
        .iter()
        .step_by(PAGE)
        .map(|b| u64::from(*b))
        .sum();
    assert_eq!(sum, (3 * (len / PAGE - own) + 9 * own) as u64);
    let private = private_kb(at, len);
    rustix::io::write(&tell, &private.to_le_bytes()).unwrap();
    let _ = rustix::io::read(&wait, &mut [0]);
    // SAFETY: ends the child without the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Anonymous kilobytes of the mappings in a range, by /proc/self/smaps.
fn private_kb(at: usize, len: usize) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let start = line
            .split_once('-')
            .and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
        if let Some(start) = start {
            inside = (at..at + len).contains(&start);
        } else if inside && line.starts_with("Anonymous:") {
            sum += line
                .split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap();
        }
    }
    sum
}

/// Kilobytes of shared memory of the machine.
fn shmem_kb() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("Shmem:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
