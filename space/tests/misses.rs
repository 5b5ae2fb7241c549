//! Misses of several threads, and of instructions that need several ranges at once; what a miss takes of a signal stack.

mod common;

use common::{PAGE, TABLE, alone, bytes, bytes_mut, copy_across_boundaries, in_child, read_write};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use space::{AddressSpace, MapFlags, MemoryObject, Rights, VtlbBound, VtlbBudget};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn threads_at_the_bound_leave_one_another_the_ranges_of_an_instruction() {
    const THREADS: usize = 16;
    const ACCESSES: usize = 100;
    const RANGES: usize = 64;
    let _alone = alone();
    let ended = in_child(|| {
        let space = AddressSpace::without_domain(6).unwrap();
        let object = MemoryObject::create((RANGES * TABLE) as u64).unwrap();
        let at = space
            .map(None, RANGES * TABLE, &object, 0, read_write())
            .unwrap();
        let done = AtomicUsize::new(0);
        let done = &done;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..ACCESSES {
                        let boundary = at + (1 + (thread * 7 + n * 2) % (RANGES - 2)) * TABLE;
                        let across = std::ptr::with_exposed_provenance::<u64>(boundary - 4);
                        // SAFETY: mapped, and never written.
                        assert_eq!(unsafe { across.read_unaligned() }, 0);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while done.load(Ordering::Relaxed) < THREADS * ACCESSES {
                let misses = space.vtlb_stats().misses;
                if misses > 10 * (THREADS * ACCESSES) as u64 {
                    println!("{misses} misses, {done:?} accesses");
                    // SAFETY: ends the child, whose threads might never end.
                    unsafe { libc::_exit(1) };
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        println!("{:?}", space.vtlb_stats());
        0
    });
    assert_eq!(ended, Ok(0));
}

/// The smallest bound that spaces accept, and that of a budget of two spaces.
fn smallest_bounds() -> [VtlbBound; 2] {
    let pages = (1..).find(|pages| AddressSpace::without_domain(*pages).is_ok());
    let budget = (1..).find_map(|pages| VtlbBudget::create(pages, 2).ok());
    [pages.unwrap().into(), (&budget.unwrap()).into()]
}

#[test]
fn an_instruction_has_the_six_ranges_that_it_needs_at_the_smallest_bound() {
    let _alone = alone();
    for bound in smallest_bounds() {
        let ended = in_child(|| {
            // An instruction that never has all of them is repeated for ever.
            // SAFETY: concerns the calling child alone.
            unsafe { libc::alarm(20) };
            copy_across_boundaries(&AddressSpace::without_domain(bound).unwrap());
            0
        });
        assert_eq!(ended, Ok(0));
    }
}

#[test]
fn an_instruction_has_the_six_ranges_that_it_needs_beside_all_pins_that_there_may_be() {
    const PINS: usize = 10;
    let _alone = alone();
    let ended = in_child(|| {
        // SAFETY: as above.
        unsafe { libc::alarm(20) };
        let space = AddressSpace::without_domain(8).unwrap();
        let object = MemoryObject::create((PINS * TABLE) as u64).unwrap();
        let at = space.map(None, PINS * TABLE, &object, 0, read_write());
        let pin = |range| space.pin(*at.as_ref().unwrap() + range * TABLE, PAGE).ok();
        let pins: Vec<_> = (0..PINS).map_while(pin).collect();
        assert!((1..PINS).contains(&pins.len()));
        copy_across_boundaries(&space);
        0
    });
    assert_eq!(ended, Ok(0));
}

/// An alternate signal stack of the calling thread's, whose use can be seen.
struct SignalStack {
    bytes: Vec<u8>,
    /// The size of the one that the thread had before.
    usual: usize,
}

impl SignalStack {
    const UNUSED: u8 = 0xa5;

    fn install() -> Self {
        let mut bytes = vec![Self::UNUSED; 64 << 10];
        let new = libc::stack_t {
            ss_sp: bytes.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: bytes.len(),
        };
        let mut old = new;
        // SAFETY: signal handlers alone use the bytes, until the child ends.
        assert_eq!(unsafe { libc::sigaltstack(&new, &mut old) }, 0);
        let usual = old.ss_size;
        Self { bytes, usual }
    }

    /// The most bytes that the misses of `run` have on it at once.
    fn used_by(&mut self, run: fn()) -> usize {
        self.bytes.fill(Self::UNUSED);
        run();
        let unused = std::hint::black_box(&self.bytes).iter();
        self.bytes.len() - unused.take_while(|byte| **byte == Self::UNUSED).count()
    }
}

const RANGES: usize = 16;

/// A mapping of an object with more ranges than there may be entries.
fn mapped(bound: impl Into<VtlbBound>, flags: MapFlags) -> (AddressSpace, usize) {
    let space = AddressSpace::without_domain(bound).unwrap();
    let object = MemoryObject::create((RANGES * TABLE) as u64).unwrap();
    let at = space.map(None, RANGES * TABLE, &object, 0, flags).unwrap();
    (space, at)
}

fn store_to_all_ranges(at: usize) {
    for range in 0..RANGES {
        // SAFETY: mapped, and used by this test alone.
        unsafe { bytes_mut(at + range * TABLE, 1)[0] += 1 };
    }
}

fn copy_on_write() -> MapFlags {
    MapFlags {
        copy_on_write: true,
        ..read_write()
    }
}

fn evict_entries() {
    let (space, at) = mapped(6, read_write());
    store_to_all_ranges(at);
    assert!(space.vtlb_stats().recycled > 0);
}

fn store_after_a_load_of_a_page_that_may_not_be_written() {
    let (space, at) = mapped(6, MapFlags::new(Rights::READ));
    // SAFETY: mapped, and never written meanwhile.
    assert_eq!(unsafe { bytes(at, 1)[0] }, 0);
    let rights = read_write().rights;
    space.protect(at, RANGES * TABLE, rights).unwrap();
    store_to_all_ranges(at);
}

fn save_and_restore_copies() {
    let (space, at) = mapped(6, copy_on_write());
    store_to_all_ranges(at);
    store_to_all_ranges(at);
    assert!(space.vtlb_stats().copies_restored > 0);
}

fn request_pages_of_another_space() {
    let budget = VtlbBudget::create(20, 2).unwrap();
    let (_other, at_other) = mapped(&budget, copy_on_write());
    let (_space, at) = mapped(&budget, copy_on_write());
    for _ in 0..4 {
        store_to_all_ranges(at_other);
        store_to_all_ranges(at);
    }
}

fn give_scratch_pages_for_an_object_that_cannot_be_mapped() {
    let space = AddressSpace::without_domain(6).unwrap();
    let sealed = memfd_create("sealed", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&sealed, PAGE as u64).unwrap();
    fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    let object = MemoryObject::from_file(sealed).unwrap();
    let mut view = space.client_view(&object, read_write().rights).unwrap();
    let call = view.begin();
    call.write(0, &[1]).unwrap();
    assert!(call.end().is_err());
}

/// Limits the size of the files that the process may write, as far as it may.
fn limit_files(bytes: libc::rlim_t) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: concerns the calling child alone.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit), 0);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

fn fail_and_be_forwarded_to_the_programs_handler() {
    static IS_FORWARDED: AtomicBool = AtomicBool::new(false);
    extern "C" fn on_sigsegv(_: i32) {
        limit_files(libc::RLIM_INFINITY);
        IS_FORWARDED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the dispositions of the calling child; the handler does what a signal handler may.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsegv as *const () as usize;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()),
            0
        );
    }
    let (_space, at) = mapped(6, copy_on_write());
    limit_files(0);
    store_to_all_ranges(at);
    assert!(IS_FORWARDED.load(Ordering::Relaxed));
}

#[test]
fn misses_leave_two_kib_of_the_signal_stack_that_a_thread_has() {
    const LEFT: usize = 2 << 10;
    let kinds: [(&str, fn()); 6] = [
        ("eviction", evict_entries),
        (
            "store after load",
            store_after_a_load_of_a_page_that_may_not_be_written,
        ),
        ("copies", save_and_restore_copies),
        ("budget", request_pages_of_another_space),
        (
            "scratch pages",
            give_scratch_pages_for_an_object_that_cannot_be_mapped,
        ),
        ("failure", fail_and_be_forwarded_to_the_programs_handler),
    ];
    let _alone = alone();
    let ended = in_child(|| {
        let mut stack = SignalStack::install();
        for (kind, run) in kinds {
            let (used, usual) = (stack.used_by(run), stack.usual);
            println!("{kind}: {used} bytes of {usual}");
            assert!(used > 0 && used + LEFT <= usual);
        }
        // The stack outlives its use.
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    });
    assert_eq!(ended, Ok(0));
}
