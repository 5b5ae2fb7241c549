//! One budget of page-table pages for the spaces of several processes: pages move to the spaces
//! that miss, and come back from those that are killed.

mod common;

use common::{TABLE, alone, bytes_mut, fork, read_write, sockets, wait};
use space::{AddressSpace, MemoryObject, SpaceError, VtlbBudget};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const RANGES: usize = 64;

/// A space that has the whole object mapped.
struct Mapped {
    space: AddressSpace,
    at: usize,
}

impl Mapped {
    fn new(budget: &VtlbBudget, object: &MemoryObject) -> Self {
        let space = AddressSpace::without_domain(budget).unwrap();
        let at = space.map(None, RANGES * TABLE, object, 0, read_write());
        let at = at.unwrap();
        Self { space, at }
    }

    /// Uses each of the first `ranges`, and checks what other processes wrote there.
    fn touch(&self, ranges: usize) {
        for range in 0..ranges {
            // SAFETY: mapped; processes take turns, or write the same byte.
            let byte = unsafe { &mut bytes_mut(self.at + range * TABLE, 1)[0] };
            assert!([0, range as u8 + 1].contains(byte));
            *byte = range as u8 + 1;
        }
    }

    fn pages(&self) -> usize {
        self.space.vtlb_stats().pages
    }
}

/// A process with a space of the budget, which performs the requests of its socket.
struct Process {
    pid: i32,
    socket: OwnedFd,
}

impl Process {
    fn start(budget: &VtlbBudget, object: &MemoryObject) -> Self {
        let (socket, theirs) = sockets();
        let pid = fork(move || {
            let mapped = Mapped::new(budget, object);
            let mut ranges = [0];
            while matches!(rustix::io::read(&theirs, &mut ranges), Ok(1)) {
                mapped.touch(usize::from(ranges[0]));
                rustix::io::write(&theirs, &[mapped.pages() as u8]).unwrap();
            }
            0
        });
        Self { pid, socket }
    }

    /// Has it use so many ranges. Returns the page-table pages that it has then.
    fn touch(&self, ranges: usize) -> usize {
        rustix::io::write(&self.socket, &[ranges as u8]).unwrap();
        let mut reply = [0];
        assert_eq!(rustix::io::read(&self.socket, &mut reply), Ok(1));
        reply[0].into()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: this test's own child.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = wait(self.pid);
    }
}

/// Repeats `step` until it returns true.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !step() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn object() -> MemoryObject {
    MemoryObject::create((RANGES * TABLE) as u64).unwrap()
}

#[test]
fn an_idle_space_gives_its_pages_to_one_that_misses() {
    let _alone = alone();
    let (budget, object) = (VtlbBudget::create(32, 3).unwrap(), object());
    let idle = Process::start(&budget, &object);
    assert_eq!(
        idle.touch(RANGES),
        20,
        "what the two others are not guaranteed"
    );
    let busy = Mapped::new(&budget, &object);
    until("the idle process keeps its pages", || {
        busy.touch(RANGES);
        busy.pages() == 20
    });
    let stats = busy.space.vtlb_stats();
    assert_eq!((stats.bound, stats.peak_pages), (20, 20));
    assert!(stats.recycled > 0, "it never waits: {stats:?}");
    // The roles change.
    until("the other direction", || idle.touch(RANGES) == 20);
    assert_eq!(busy.pages(), 6);
    assert!(busy.space.vtlb_stats().given_back >= 14);
}

#[test]
fn the_pages_of_a_killed_process_are_free_at_once_and_so_is_its_place() {
    let _alone = alone();
    let (budget, object) = (VtlbBudget::create(20, 2).unwrap(), object());
    let ours = Mapped::new(&budget, &object);
    for _ in 0..20 {
        let other = Process::start(&budget, &object);
        until("the other process has the pool", || {
            other.touch(RANGES) == 14
        });
        let full = AddressSpace::without_domain(&budget).err();
        assert!(matches!(full, Some(SpaceError::BudgetFull { spaces: 2 })));
        drop(other);
        ours.touch(RANGES);
        assert_eq!(
            ours.pages(),
            14,
            "killed and reaped: nothing is to wait for"
        );
    }
}

#[test]
fn beside_a_stopped_process_each_space_has_its_six_pages() {
    let _alone = alone();
    let (budget, object) = (VtlbBudget::create(28, 3).unwrap(), object());
    let stopped = Process::start(&budget, &object);
    assert_eq!(stopped.touch(RANGES), 16);
    stopped.signal(libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: this test's own child; returns when all its threads have stopped.
    let waited = unsafe { libc::waitpid(stopped.pid, &mut status, libc::WUNTRACED) };
    assert!(waited == stopped.pid && libc::WIFSTOPPED(status));
    let ours = Mapped::new(&budget, &object);
    let late = Mapped::new(&budget, &object);
    for _ in 0..3 {
        ours.touch(RANGES);
        late.touch(RANGES);
    }
    assert_eq!((ours.pages(), late.pages()), (6, 6));
    stopped.signal(libc::SIGCONT);
    until("it goes on, and gives back", || {
        ours.touch(RANGES);
        ours.pages() > 10
    });
}

#[test]
fn a_pin_takes_pages_that_other_spaces_give_back_and_keeps_them() {
    let _alone = alone();
    let (budget, object) = (VtlbBudget::create(24, 2).unwrap(), object());
    let idle = Process::start(&budget, &object);
    assert_eq!(idle.touch(RANGES), 18);
    let ours = Mapped::new(&budget, &object);
    let pin = ours.space.pin(ours.at, 8 * TABLE).unwrap();
    until("the other process recycles", || idle.touch(RANGES) <= 11);
    assert!(ours.pages() >= 8);
    let refused = ours.space.pin(ours.at + 8 * TABLE, 8 * TABLE);
    assert!(matches!(
        refused,
        Err(SpaceError::VtlbFull {
            needed: 8,
            pinned: 8,
            ..
        })
    ));
    drop(refused);
    drop(pin);
    until("unpinned pages move", || idle.touch(RANGES) == 18);
}

#[test]
fn two_spaces_of_one_process_share_a_budget_too_and_a_dropped_one_leaves_its_place() {
    let _alone = alone();
    let (budget, object) = (VtlbBudget::create(16, 2).unwrap(), object());
    let kept = Mapped::new(&budget, &object);
    for _ in 0..5 {
        let dropped = Mapped::new(&budget, &object);
        until("it has the pool", || {
            dropped.touch(RANGES);
            dropped.pages() == 10
        });
        drop(dropped);
        kept.touch(RANGES);
        assert_eq!(kept.pages(), 10);
    }
}

#[test]
fn a_budget_goes_to_another_process_as_a_descriptor_and_nothing_else_is_one() {
    let budget = VtlbBudget::create(96, 10).unwrap();
    let again = VtlbBudget::from_descriptor(budget.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((again.pages(), again.spaces()), (96, 10));
    let foreign = |descriptor: OwnedFd| {
        let refused = VtlbBudget::from_descriptor(descriptor).err();
        assert!(matches!(refused, Some(SpaceError::Foreign(_))));
    };
    foreign(std::fs::File::open("/dev/null").unwrap().into());
    foreign(tempfile::tempfile().unwrap().into());
    foreign(object().as_fd().try_clone_to_owned().unwrap());
    for (pages, spaces) in [(17, 3), (64, 0), (2000, 257), (4097, 2), (usize::MAX, 1)] {
        let refused = VtlbBudget::create(pages, spaces).err();
        assert!(matches!(refused, Some(SpaceError::Budget { .. })));
    }
}
