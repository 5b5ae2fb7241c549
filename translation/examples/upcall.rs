//! Lower bound of a fault that a program resolves for itself: `cargo run --release -p translation
//! --example upcall`. A handler copies one page, always the same, without stretches, frames or
//! stores; one thread touches the pages in scattered order. A pager's own cost is what it takes
//! beyond this.

use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Instant;
use translation::{Capabilities, EntryKind, Userfault, Wake, discard, reserve_staging};
use wired::PAGE;

const PAGES: usize = 1 << 16;
const ROUNDS: usize = 5;
/// Odd, so that steps of it go through all pages.
const STEP: usize = 40_503;

static PAGER: OnceLock<(Userfault, Box<[u8; PAGE]>)> = OnceLock::new();

extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some((userfault, page)) = PAGER.get() else {
        return;
    };
    // SAFETY: the kernel fills it, for a signal with an address.
    let address = unsafe { (*info).si_addr() } as usize;
    // A copy that fails makes the thread fault again at once; the handler needs no error path.
    let _ = userfault.copy(address & !(PAGE - 1), page.as_ptr(), PAGE, Wake::No);
}

fn main() -> ExitCode {
    let capabilities = Capabilities::probe().capabilities;
    let userfault = match Userfault::open(EntryKind::Upcall, &capabilities) {
        Ok(userfault) => userfault,
        Err(why) => {
            eprintln!("no upcalls here: {why}");
            return ExitCode::FAILURE;
        }
    };
    let area = reserve_staging(PAGES * PAGE).expect("address space");
    userfault
        .register(area.addr, area.len, true, false)
        .expect("registered");
    assert!(PAGER.set((userfault, Box::new([7; PAGE]))).is_ok());
    // SAFETY: all zero is a valid action; it is filled in below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler makes one system call and returns.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) };
    assert_eq!(set, 0);
    for _ in 0..ROUNDS {
        // SAFETY: the example's own memory; no reference to it exists.
        unsafe { discard(area.addr, area.len) }.expect("mapped");
        let mut times: Vec<u64> = (0..PAGES)
            .map(|n| {
                let at = area.addr + n * STEP % PAGES * PAGE;
                let begin = Instant::now();
                // SAFETY: inside the area, which the handler fills.
                let byte = unsafe { std::ptr::read_volatile(at as *const u8) };
                let time = begin.elapsed().as_nanos() as u64;
                assert_eq!(byte, 7);
                time
            })
            .collect();
        times.sort_unstable();
        let quantile = |part: usize| times[PAGES * part / 100] as f64 / 1e3;
        println!(
            "a fault p50 {:.2} p90 {:.2} p99 {:.2} us",
            quantile(50),
            quantile(90),
            quantile(99)
        );
    }
    ExitCode::SUCCESS
}
