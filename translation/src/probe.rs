//! What works here, found by trying it.
//!
//! A kernel's version or feature bits do not tell: calls are filtered by seccomp,
//! forbidden by sysctl, and were broken in some kernels. So each feature is performed on
//! a scratch mapping and its result is looked at. The descriptor of the trials is
//! user-mode-only with SIGBUS and all accesses to missing pages go through system calls:
//! whatever fails, fails with an error and never with a hang or a signal.

use crate::capability::{Capabilities, Feature};
use crate::map::Wake;
use crate::raw;
use crate::trans::Pagemap;
use crate::unmap::{Piece, discard};
use crate::userfault::{
    EntryKind, Options, Userfault, by_device, by_syscall, handshake, open_device,
};
use crate::{
    KeyRights, ProtectionKey, Reservation, reserve, separate_pinned, stage, unmap_reservation,
};
use linux_raw_sys::general as sys;
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use wired::PAGE;

/// By which way a descriptor that resolves faults inside system calls is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obtained {
    /// `userfaultfd(2)`, by CAP_SYS_PTRACE or `vm.unprivileged_userfaultfd=1`.
    Syscall,
    /// `USERFAULTFD_IOC_NEW` on `/dev/userfaultfd`.
    Device,
    /// Only user-mode-only ones: upcalls work, the thread entry cannot serve system calls.
    UserModeOnly,
    /// None at all.
    Nothing,
}

/// A feature that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Which.
    pub feature: Feature,
    /// What the trial said.
    pub reason: String,
    /// The exact command line that mends it, or what to change where no command does.
    pub mend: String,
    /// What is done instead, or cannot be done.
    pub consequence: &'static str,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What works.
    pub capabilities: Capabilities,
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// How descriptors are had.
    pub obtained: Obtained,
    /// What does not work.
    pub lacks: Vec<Lack>,
}

impl Capabilities {
    /// Tries everything, and says of each feature that is missing why and what mends it.
    pub fn probe() -> Probe {
        let trials = Trials::all();
        let lacks = Feature::ALL
            .into_iter()
            .filter(|feature| !trials.capabilities.has(*feature))
            .map(|feature| crate::doctor::lack(feature, trials.errno(feature)))
            .collect();
        Probe {
            capabilities: trials.capabilities,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            obtained: trials.obtained,
            lacks,
        }
    }

    /// The same trials without the texts and without those features the pager can start
    /// without knowing ([`Feature::EventFork`], [`Feature::PerfPageFaultSignal`],
    /// [`Feature::ProtectionKeys`], [`Feature::WpAsync`], [`Feature::WpUnpopulated`]),
    /// which it leaves off: for the start of every process of a tree. 58 us, where the whole
    /// probe takes 170 (p50, `cargo run --release -p translation --example translation_costs`).
    pub fn probe_fast() -> Self {
        Trials::needed_at_start().capabilities
    }
}

/// Pages of the scratch mapping.
const SCRATCH: usize = 32;
/// Byte that marks the pages of the trials.
const MARK: u8 = 0xA5;

/// What the trials have found so far.
struct Trials {
    capabilities: Capabilities,
    obtained: Obtained,
    errors: [Errno; Feature::ALL.len()],
}

impl Trials {
    fn all() -> Self {
        let mut trials = Self::needed_at_start();
        trials.note(Feature::EventFork, event_fork());
        trials.note(
            Feature::ProtectionKeys,
            ProtectionKey::new(KeyRights::ReadWrite).map(drop),
        );
        trials.note(Feature::PerfPageFaultSignal, perf_signal());
        if trials.capabilities.has(Feature::PagemapScan) && trials.capabilities.has(Feature::Upcall)
        {
            // Opening with it is part of its trial.
            let with = trials.capabilities.with(Feature::WpAsync);
            trials.note(Feature::WpAsync, write_protect_async(&with));
            trials.note(Feature::WpUnpopulated, write_protect_holes());
        }
        trials
    }

    fn needed_at_start() -> Self {
        let mut trials = Self {
            capabilities: Capabilities::NONE,
            obtained: Obtained::Nothing,
            errors: [Errno::NOSYS; Feature::ALL.len()],
        };
        trials.descriptors();
        if trials.obtained == Obtained::Nothing {
            return trials;
        }
        let scratch = match reserve(None, SCRATCH * PAGE, true) {
            Ok(scratch) => scratch,
            Err(_) => return trials,
        };
        trials.note(Feature::PagemapScan, pagemap_scan(scratch));
        trials.note(Feature::BatchDiscard, batch_discard(scratch));
        if let Err(errno) = trials.paging(scratch) {
            trials.errors[Feature::Stage as usize] = errno;
        }
        // SAFETY: the scratch mapping is ours alone.
        let _ = unsafe { unmap_reservation(scratch) };
        trials
    }

    fn errno(&self, feature: Feature) -> Errno {
        self.errors[feature as usize]
    }

    fn note(&mut self, feature: Feature, trial: Result<(), Errno>) {
        match trial {
            Ok(()) => self.capabilities = self.capabilities.with(feature),
            Err(errno) => self.errors[feature as usize] = errno,
        }
    }

    /// Which descriptors can be had, and the features their API announces.
    fn descriptors(&mut self) {
        let (full, how) = match by_syscall(false) {
            Ok(fd) => (Ok(fd), Obtained::Syscall),
            Err(_) => (
                open_device().and_then(|d| by_device(d.as_fd(), false)),
                Obtained::Device,
            ),
        };
        self.obtained = how;
        self.note(
            Feature::KernelFaults,
            full.as_ref().map(drop).map_err(|e| *e),
        );
        let any = full.or_else(|_| {
            self.obtained = Obtained::UserModeOnly;
            by_syscall(true)
        });
        let announced = match any.and_then(|fd| handshake(fd.as_fd(), 0)) {
            Ok(features) => features,
            Err(_) => {
                self.obtained = Obtained::Nothing;
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
        // Announced; the trials that follow switch them on and take back what fails.
        self.note(Feature::Upcall, has(sys::UFFD_FEATURE_SIGBUS));
        self.note(Feature::ThreadId, has(sys::UFFD_FEATURE_THREAD_ID));
        self.note(Feature::Poison, has(sys::UFFD_FEATURE_POISON));
        self.note(Feature::Move, has(sys::UFFD_FEATURE_MOVE));
    }

    fn take_back(&mut self, feature: Feature, errno: Errno) {
        self.capabilities = self.capabilities.without(feature);
        self.errors[feature as usize] = errno;
    }

    /// Upcall, stage, move and poison on registered memory.
    fn paging(&mut self, scratch: Reservation) -> Result<(), Errno> {
        let userfault = match Userfault::open(EntryKind::Upcall, &self.capabilities) {
            Ok(userfault) => userfault,
            Err(_) => {
                for feature in [Feature::Upcall, Feature::Move, Feature::Poison] {
                    self.take_back(feature, Errno::OPNOTSUPP);
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
        // A missing page is refused to the kernel: the fault came to the descriptor.
        let delivered = registered.and_then(|()| refused(src));
        if let Err(errno) = delivered {
            for feature in [Feature::Upcall, Feature::Move, Feature::Poison] {
                self.take_back(feature, errno);
            }
            return Err(errno);
        }
        let staged = try_stage(&userfault, src, slot);
        self.note(Feature::Stage, staged);
        if staged.is_ok()
            && self.capabilities.has(Feature::Move)
            && let Err(errno) = try_move(&userfault, slot, second)
        {
            self.take_back(Feature::Move, errno);
        }
        if self.capabilities.has(Feature::Poison)
            && let Err(errno) = try_poison(&userfault, second + 4 * PAGE)
        {
            self.take_back(Feature::Poison, errno);
        }
        Ok(())
    }
}

fn truth(held: bool) -> Result<(), Errno> {
    if held { Ok(()) } else { Err(Errno::PROTO) }
}

fn refused(addr: usize) -> Result<(), Errno> {
    truth(!raw::kernel_can_read(addr))
}

fn byte(addr: usize) -> u8 {
    // SAFETY: called with pages of the scratch mapping that were seen to be readable.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
}

fn set_byte(addr: usize, value: u8) {
    // SAFETY: called with pages of the scratch mapping that are not registered.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(addr).write_volatile(value) }
}

/// Map a page, stage its range: contents arrive, the source is missing *and registered*.
fn try_stage(userfault: &Userfault, src: usize, slot: usize) -> Result<(), Errno> {
    let page = [MARK; PAGE];
    userfault
        .copy(src + PAGE, page.as_ptr(), PAGE, Wake::No)
        .map_err(|_| Errno::PROTO)?;
    // SAFETY: both areas are scratch.
    unsafe { stage(src, 8 * PAGE, slot) }.map_err(|_| Errno::PROTO)?;
    truth(raw::kernel_can_read(slot + PAGE) && byte(slot + PAGE) == MARK)?;
    truth(byte(slot) == 0)?;
    refused(src + PAGE)
}

/// Move the staged page on: it arrives, and the slot has a hole (which reads as zero).
fn try_move(userfault: &Userfault, slot: usize, second: usize) -> Result<(), Errno> {
    // SAFETY: both areas are scratch.
    let pinned = unsafe { separate_pinned(userfault, slot, second, 4 * PAGE, |_| {}) }
        .map_err(|_| Errno::PROTO)?;
    truth(pinned == 0)?;
    truth(raw::kernel_can_read(second + PAGE) && byte(second + PAGE) == MARK)?;
    truth(byte(slot + PAGE) == 0)
}

/// Poison a missing page: access fails; take it away: the page can be mapped.
fn try_poison(userfault: &Userfault, addr: usize) -> Result<(), Errno> {
    let method = userfault.poison(addr, PAGE).map_err(|e| e.errno)?;
    refused(addr)?;
    // SAFETY: just poisoned so.
    unsafe { userfault.unpoison(addr, PAGE, method, false) }.map_err(|e| e.errno)?;
    userfault
        .zero(addr, PAGE, Wake::No)
        .map_err(|_| Errno::PROTO)
}

fn pagemap_scan(scratch: Reservation) -> Result<(), Errno> {
    let pagemap = Pagemap::open(&Capabilities::NONE.with(Feature::PagemapScan))?;
    set_byte(scratch.addr + PAGE, MARK);
    let mut bitmap = [0; 1];
    let count = pagemap.present_pages(scratch.addr, 4 * PAGE, &mut bitmap)?;
    // SAFETY: scratch.
    unsafe { discard(scratch.addr, 4 * PAGE) }?;
    truth(count == 1 && bitmap[0] == 0b10)
}

fn batch_discard(scratch: Reservation) -> Result<(), Errno> {
    let pieces = [0, 2].map(|page| Piece {
        addr: scratch.addr + page * PAGE,
        len: PAGE,
    });
    for page in 0..3 {
        set_byte(scratch.addr + page * PAGE, MARK);
    }
    // SAFETY: scratch.
    let bytes = unsafe { raw::advise_self(&pieces, sys::MADV_DONTNEED) }?;
    let kept = [0, 1, 2].map(|page| byte(scratch.addr + page * PAGE));
    // SAFETY: scratch.
    unsafe { discard(scratch.addr, 4 * PAGE) }?;
    truth(bytes == 2 * PAGE && kept == [0, MARK, 0])
}

fn event_fork() -> Result<(), Errno> {
    let fd =
        by_syscall(false).or_else(|_| open_device().and_then(|d| by_device(d.as_fd(), false)))?;
    handshake(fd.as_fd(), u64::from(sys::UFFD_FEATURE_EVENT_FORK)).map(drop)
}

/// Asynchronous write protection lets a store through and records it.
fn write_protect_async(capabilities: &Capabilities) -> Result<(), Errno> {
    let options = Options {
        async_write_protect: true,
        ..Options::default()
    };
    let userfault = Userfault::open_with(EntryKind::Upcall, capabilities, options)
        .map_err(|_| Errno::OPNOTSUPP)?;
    let pagemap = Pagemap::open(capabilities)?;
    let scratch = reserve(None, 4 * PAGE, true).map_err(|_| Errno::NOMEM)?;
    let trial = || {
        (0..3).for_each(|page| set_byte(scratch.addr + page * PAGE, MARK));
        userfault
            .register(scratch.addr, 4 * PAGE, false, true)
            .map_err(|e| e.errno)?;
        userfault
            .write_protect(scratch.addr, 4 * PAGE, true)
            .map_err(|e| e.errno)?;
        // By the kernel: were the protection synchronous this would fail, not trap.
        // SAFETY: scratch.
        unsafe { raw::kernel_writes(scratch.addr + PAGE) }?;
        truth(pagemap.trans(scratch.addr)?.dirty == Some(false))?;
        truth(pagemap.trans(scratch.addr + PAGE)?.dirty == Some(true))
    };
    let result = trial();
    // SAFETY: the scratch mapping is ours alone.
    let _ = unsafe { unmap_reservation(scratch) };
    result
}

/// With the feature a hole that is write-protected is marked so.
fn write_protect_holes() -> Result<(), Errno> {
    let fd = by_syscall(true)?;
    handshake(
        fd.as_fd(),
        u64::from(sys::UFFD_FEATURE_WP_UNPOPULATED | sys::UFFD_FEATURE_SIGBUS),
    )?;
    let capabilities = Capabilities::NONE.with(Feature::Upcall);
    let userfault = Userfault::from_owned(fd, EntryKind::Upcall, &capabilities, Options::default());
    let pagemap = Pagemap::open(&capabilities)?;
    let scratch = reserve(None, PAGE, true).map_err(|_| Errno::NOMEM)?;
    let trial = || {
        userfault
            .register(scratch.addr, PAGE, false, true)
            .map_err(|e| e.errno)?;
        userfault
            .write_protect(scratch.addr, PAGE, true)
            .map_err(|e| e.errno)?;
        truth(pagemap.trans(scratch.addr)?.write_protected)
    };
    let result = trial();
    // SAFETY: the scratch mapping is ours alone.
    let _ = unsafe { unmap_reservation(scratch) };
    result
}

/// A page-fault event with `sigtrap`, opened disabled and closed again.
fn perf_signal() -> Result<(), Errno> {
    /// The part of `struct perf_event_attr` up to `sig_data` (PERF_ATTR_SIZE_VER7).
    #[repr(C)]
    struct Attributes {
        kind: u32,
        size: u32,
        config: u64,
        period: u64,
        sample_and_read: [u64; 2],
        flags: u64,
        rest: [u64; 10],
    }
    const _: () = assert!(size_of::<Attributes>() == 128);
    const SOFTWARE: u32 = 1;
    const PAGE_FAULTS: u64 = 2;
    const DISABLED: u64 = 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const REMOVE_ON_EXEC: u64 = 1 << 36;
    const SIGTRAP: u64 = 1 << 37;
    /// `PERF_FLAG_FD_CLOEXEC`.
    const CLOEXEC: usize = 8;
    let attributes = Attributes {
        kind: SOFTWARE,
        size: 128,
        config: PAGE_FAULTS,
        period: 100,
        sample_and_read: [0; 2],
        flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | REMOVE_ON_EXEC | SIGTRAP,
        rest: [0; 10],
    };
    let any = usize::MAX;
    // SAFETY: an attribute structure of the size it says; this thread, any processor.
    let fd = unsafe {
        raw::syscall(
            sys::__NR_perf_event_open,
            [&raw const attributes as usize, 0, any, any, CLOEXEC, 0],
        )
    }?;
    // SAFETY: a descriptor the kernel just made for us; dropped at once.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}
