//! Finds by trial which kernel features work.
//!
//! A kernel's version or feature bits do not tell: seccomp filters calls, sysctls forbid them, and
//! some kernels had them broken. So each feature is performed on a scratch mapping and its result
//! is checked. The descriptor of the trials is user-mode-only with SIGBUS, and all accesses to
//! missing pages go through system calls: a trial fails with an error, never with a hang or a
//! signal.

use crate::capability::{Capabilities, Feature};
use crate::map::Wake;
use crate::pagemap::Pagemap;
use crate::uapi;
use crate::unmap::{IoVec, discard};
use crate::userfault::{
    EntryKind, Userfault, UserfaultOptions, by_device, by_syscall, handshake, open_device,
};
use crate::{Reservation, reserve, separate_pinned, stage, unmap_reservation};
use linux_raw_sys::general as sys;
use rustix::fd::AsFd;
use rustix::io::Errno;
use wired::PAGE;

/// How this process opens a descriptor that resolves faults inside system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdSource {
    /// `userfaultfd(2)`, by CAP_SYS_PTRACE or `vm.unprivileged_userfaultfd=1`.
    Syscall,
    /// `USERFAULTFD_IOC_NEW` on `/dev/userfaultfd`.
    Device,
    /// Only user-mode-only descriptors: upcalls work, handler threads cannot serve system calls.
    UserModeOnly,
    /// No descriptor can be opened.
    Nothing,
}

/// A feature whose trial failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingFeature {
    /// The feature.
    pub feature: Feature,
    /// The trial's error. PROTO: the kernel accepted the call, but its effect was wrong.
    pub errno: Errno,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What works.
    pub capabilities: Capabilities,
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// How descriptors are opened.
    pub source: UffdSource,
    /// What does not work.
    pub missing: Vec<MissingFeature>,
}

impl Capabilities {
    /// Tries every feature and records the error of each one that is missing.
    pub fn probe() -> Probe {
        let runs = ProbeRuns::all();
        let missing = Feature::ALL
            .into_iter()
            .filter(|feature| !runs.capabilities.has(*feature))
            .map(|feature| MissingFeature {
                feature,
                errno: runs.errno(feature),
            })
            .collect();
        Probe {
            capabilities: runs.capabilities,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            source: runs.source,
            missing,
        }
    }

    /// Probes without [`Feature::WpAsync`], which the pager can start without; it stays off. For the
    /// start of a tree or a domain: 58 us (p50, `cargo run --release -p translation --example
    /// translation_costs`).
    pub fn probe_fast() -> Self {
        ProbeRuns::needed_at_start().capabilities
    }
}

/// Pages of the scratch mapping.
const SCRATCH_PAGES: usize = 32;
/// Byte that fills the pages of the trials.
const PATTERN: u8 = 0xA5;

/// Results of the trials so far.
struct ProbeRuns {
    capabilities: Capabilities,
    source: UffdSource,
    errors: [Errno; Feature::ALL.len()],
}

impl ProbeRuns {
    fn all() -> Self {
        let mut runs = Self::needed_at_start();
        if runs.capabilities.has(Feature::PagemapScan) && runs.capabilities.has(Feature::Upcall) {
            // Opening a descriptor with the feature is part of its trial.
            let with = runs.capabilities.with(Feature::WpAsync);
            runs.record(Feature::WpAsync, write_protect_async(&with));
        }
        runs
    }

    fn needed_at_start() -> Self {
        let mut runs = Self {
            capabilities: Capabilities::NONE,
            source: UffdSource::Nothing,
            errors: [Errno::NOSYS; Feature::ALL.len()],
        };
        runs.descriptors();
        if runs.source == UffdSource::Nothing {
            return runs;
        }
        let scratch = match reserve(None, SCRATCH_PAGES * PAGE, true) {
            Ok(scratch) => scratch,
            Err(_) => return runs,
        };
        for (feature, trial) in [
            (Feature::PagemapScan, pagemap_scan as fn(_) -> _),
            (Feature::BatchDiscard, batch_discard),
        ] {
            runs.record(feature, trial(scratch));
            // A trial that failed left pages there, which the next one expects to be missing.
            // SAFETY: only this function knows the scratch mapping.
            let _ = unsafe { discard(scratch.addr, SCRATCH_PAGES * PAGE) };
        }
        if let Err(errno) = runs.paging(scratch) {
            runs.errors[Feature::Stage as usize] = errno;
        }
        // SAFETY: only this function knows the scratch mapping.
        let _ = unsafe { unmap_reservation(scratch) };
        runs
    }

    fn errno(&self, feature: Feature) -> Errno {
        self.errors[feature as usize]
    }

    fn record(&mut self, feature: Feature, trial: Result<(), Errno>) {
        match trial {
            Ok(()) => self.capabilities = self.capabilities.with(feature),
            Err(errno) => self.errors[feature as usize] = errno,
        }
    }

    /// Records which descriptors can be opened and which features their API announces.
    fn descriptors(&mut self) {
        let (full, how) = match by_syscall(false) {
            Ok(fd) => (Ok(fd), UffdSource::Syscall),
            Err(_) => (
                open_device().and_then(|d| by_device(d.as_fd(), false)),
                UffdSource::Device,
            ),
        };
        self.source = how;
        self.record(
            Feature::KernelFaults,
            full.as_ref().map(drop).map_err(|e| *e),
        );
        let any = full.or_else(|_| {
            self.source = UffdSource::UserModeOnly;
            by_syscall(true)
        });
        let announced = match any.and_then(|fd| handshake(fd.as_fd(), 0)) {
            Ok(features) => features,
            Err(_) => {
                self.source = UffdSource::Nothing;
                return;
            }
        };
        let has = |bit: u32| {
            if announced & u64::from(bit) != 0 {
                Ok(())
            } else {
                Err(Errno::NOSYS)
            }
        };
        // The kernel announces these; the trials below switch them on and clear those that fail.
        self.record(Feature::Upcall, has(sys::UFFD_FEATURE_SIGBUS));
        self.record(Feature::ThreadId, has(sys::UFFD_FEATURE_THREAD_ID));
        self.record(Feature::Poison, has(sys::UFFD_FEATURE_POISON));
        self.record(Feature::Move, has(sys::UFFD_FEATURE_MOVE));
    }

    fn clear(&mut self, feature: Feature, errno: Errno) {
        self.capabilities = self.capabilities.without(feature);
        self.errors[feature as usize] = errno;
    }

    /// Upcall, stage, move and poison on registered memory.
    fn paging(&mut self, scratch: Reservation) -> Result<(), Errno> {
        let userfault = match Userfault::open(EntryKind::Upcall, &self.capabilities) {
            Ok(userfault) => userfault,
            Err(_) => {
                for feature in [Feature::Upcall, Feature::Move, Feature::Poison] {
                    self.clear(feature, Errno::OPNOTSUPP);
                }
                return Err(Errno::OPNOTSUPP);
            }
        };
        // Two registered areas of eight pages; the slot between them is not registered.
        let (src, slot, second) = (
            scratch.addr,
            scratch.addr + 8 * PAGE,
            scratch.addr + 16 * PAGE,
        );
        let registered = userfault
            .register(src, 8 * PAGE, true, false)
            .and_then(|()| userfault.register(second, 8 * PAGE, true, false))
            .map_err(|e| e.errno);
        // A system call fails on a missing page once the descriptor receives the fault.
        let delivered = registered.and_then(|()| refused(src));
        if let Err(errno) = delivered {
            for feature in [Feature::Upcall, Feature::Move, Feature::Poison] {
                self.clear(feature, errno);
            }
            return Err(errno);
        }
        let staged = try_stage(&userfault, src, slot);
        self.record(Feature::Stage, staged);
        if staged.is_ok()
            && self.capabilities.has(Feature::Move)
            && let Err(errno) = try_move(&userfault, slot, second)
        {
            self.clear(Feature::Move, errno);
        }
        if self.capabilities.has(Feature::Poison)
            && let Err(errno) = try_poison(&userfault, second + 4 * PAGE)
        {
            self.clear(Feature::Poison, errno);
        }
        Ok(())
    }
}

fn expect_that(held: bool) -> Result<(), Errno> {
    if held { Ok(()) } else { Err(Errno::PROTO) }
}

fn refused(addr: usize) -> Result<(), Errno> {
    expect_that(!uapi::kernel_can_read(addr))
}

fn byte(addr: usize) -> u8 {
    // SAFETY: callers pass pages of the scratch mapping after a check that they are readable.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
}

fn set_byte(addr: usize, value: u8) {
    // SAFETY: callers pass pages of the scratch mapping that are not registered.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(addr).write_volatile(value) }
}

/// Maps a page and stages its range: contents arrive, the source is missing *and registered*.
fn try_stage(userfault: &Userfault, src: usize, slot: usize) -> Result<(), Errno> {
    let page = [PATTERN; PAGE];
    userfault
        .copy(src + PAGE, page.as_ptr(), PAGE, Wake::No)
        .map_err(|_| Errno::PROTO)?;
    // SAFETY: both areas are scratch.
    unsafe { stage(src, 8 * PAGE, slot) }.map_err(|_| Errno::PROTO)?;
    expect_that(uapi::kernel_can_read(slot + PAGE) && byte(slot + PAGE) == PATTERN)?;
    expect_that(byte(slot) == 0)?;
    refused(src + PAGE)
}

/// Moves the staged page on: it arrives, and the slot has a hole (which reads as zero).
fn try_move(userfault: &Userfault, slot: usize, second: usize) -> Result<(), Errno> {
    // SAFETY: both areas are scratch.
    let pinned = unsafe { separate_pinned(userfault, slot, second, 4 * PAGE, |_| {}) }
        .map_err(|_| Errno::PROTO)?;
    expect_that(pinned == 0)?;
    expect_that(uapi::kernel_can_read(second + PAGE) && byte(second + PAGE) == PATTERN)?;
    expect_that(byte(slot + PAGE) == 0)
}

/// Poisons a missing page: access fails; unpoisons it: the page can be mapped.
fn try_poison(userfault: &Userfault, addr: usize) -> Result<(), Errno> {
    // SAFETY: a missing page of scratch.
    let method = unsafe { userfault.poison(addr, PAGE) }.map_err(|e| e.errno)?;
    refused(addr)?;
    // SAFETY: poisoned above by `method`.
    unsafe { userfault.unpoison(addr, PAGE, method, false) }.map_err(|e| e.errno)?;
    userfault
        .zero(addr, PAGE, Wake::No)
        .map_err(|_| Errno::PROTO)
}

fn pagemap_scan(scratch: Reservation) -> Result<(), Errno> {
    let pagemap = Pagemap::open(&Capabilities::NONE.with(Feature::PagemapScan))?;
    set_byte(scratch.addr + PAGE, PATTERN);
    let mut bitmap = [0; 1];
    let count = pagemap.present_pages(scratch.addr, 4 * PAGE, &mut bitmap)?;
    expect_that(count == 1 && bitmap[0] == 0b10)
}

fn batch_discard(scratch: Reservation) -> Result<(), Errno> {
    let pieces = [0, 2].map(|page| IoVec {
        addr: scratch.addr + page * PAGE,
        len: PAGE,
    });
    for page in 0..3 {
        set_byte(scratch.addr + page * PAGE, PATTERN);
    }
    // SAFETY: scratch.
    let bytes = unsafe { uapi::advise_self(&pieces, sys::MADV_DONTNEED) }?;
    let kept = [0, 1, 2].map(|page| byte(scratch.addr + page * PAGE));
    expect_that(bytes == 2 * PAGE && kept == [0, PATTERN, 0])
}

/// Asynchronous write protection lets a store through and records it.
fn write_protect_async(capabilities: &Capabilities) -> Result<(), Errno> {
    let options = UserfaultOptions {
        async_write_protect: true,
        ..UserfaultOptions::default()
    };
    let userfault = Userfault::open_with(EntryKind::Upcall, capabilities, options)
        .map_err(|_| Errno::OPNOTSUPP)?;
    let pagemap = Pagemap::open(capabilities)?;
    let scratch = reserve(None, 4 * PAGE, true).map_err(|_| Errno::NOMEM)?;
    let trial = || {
        (0..3).for_each(|page| set_byte(scratch.addr + page * PAGE, PATTERN));
        userfault
            .register(scratch.addr, 4 * PAGE, false, true)
            .map_err(|e| e.errno)?;
        userfault
            .write_protect(scratch.addr, 4 * PAGE, true)
            .map_err(|e| e.errno)?;
        // The kernel writes: under synchronous protection this would fail, not trap.
        // SAFETY: scratch.
        unsafe { uapi::kernel_writes(scratch.addr + PAGE) }?;
        expect_that(pagemap.trans(scratch.addr)?.dirty == Some(false))?;
        expect_that(pagemap.trans(scratch.addr + PAGE)?.dirty == Some(true))
    };
    let result = trial();
    // SAFETY: only this function knows the scratch mapping.
    let _ = unsafe { unmap_reservation(scratch) };
    result
}
