//! Threads with little stack for their upcalls.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the test's own stretch and threads"
)]

use selfpage::{DirectIo, Domain, FaultKind, Handled, Paged, Rights, Stretch};

const PAGE: usize = 4096;
const PAGES: usize = 2048;

/// What README allows an upcall, and the thread's own frames, its locals and its C library's part.
const STACK: usize = (32 << 10) + (8 << 10);

extern "C" fn write_and_read(stretch: *mut libc::c_void) -> *mut libc::c_void {
    let stretch = unsafe { &*stretch.cast::<Stretch>() };
    let mut noise = 88_172_645_463_325_252u64;
    for round in 0..3 * PAGES {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        // In order for streams, anywhere for single pages.
        let page = if round % 3 == 0 {
            round / 3
        } else {
            noise as usize % PAGES
        };
        for word in (0..PAGE / 8).step_by(8) {
            let at = unsafe { stretch.as_ptr().cast::<u64>().add(page * PAGE / 8 + word) };
            unsafe { at.write_volatile(noise.wrapping_mul(word as u64 + 1)) };
        }
    }
    std::ptr::null_mut()
}

#[test]
fn an_upcall_has_room_on_a_small_stack() {
    let place = tempfile::tempdir().unwrap();
    let disk = place.path().join("swap");
    let domain = Domain::builder()
        .frames(256)
        .store(
            format!("ram:1M+disk:{},size=64M", disk.display())
                .parse()
                .unwrap(),
        )
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .unwrap();
    let stretch = domain.allocate(PAGES * PAGE).unwrap();
    stretch.bind(Paged).unwrap();
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        assert_eq!(
            libc::pthread_attr_setstacksize(&raw mut attributes, STACK),
            0
        );
        let mut thread = 0;
        let argument = (&raw const stretch).cast_mut().cast();
        let started = libc::pthread_create(
            &raw mut thread,
            &raw const attributes,
            write_and_read,
            argument,
        );
        assert_eq!(started, 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        libc::pthread_attr_destroy(&raw mut attributes);
    }
}

#[inline(never)]
fn use_stack(kib: usize) -> u8 {
    let mut room = [0u8; 1024];
    std::hint::black_box(&mut room);
    match kib {
        1 => room[5],
        _ => use_stack(kib - 1).wrapping_add(room[3]),
    }
}

#[test]
fn a_protection_handler_has_3_kib_on_the_alternate_stack_of_a_rust_thread() {
    let domain = Domain::builder().frames(64).build().unwrap();
    let stretch = domain.allocate(PAGE).unwrap();
    stretch.bind(selfpage::Physical).unwrap();
    let (base, len) = (stretch.base(), stretch.len());
    let open = move |_: &_| {
        std::hint::black_box(use_stack(3));
        unsafe { libc::mprotect(base as *mut _, len, libc::PROT_READ | libc::PROT_WRITE) };
        Handled::Resume
    };
    stretch.override_fault(FaultKind::Protection, Some(Box::new(open)));
    unsafe { stretch.as_ptr().write_volatile(1) };
    stretch.protect(Rights::READ | Rights::META).unwrap();
    unsafe { stretch.as_ptr().write_volatile(2) };
}
