//! The threads of the pager process: the first, which leads; one that evicts; one that makes requests, from the first
//! one on; one on each processor that reads faults, from the first fault on, since most processes of a tree end without any.
//!
//! They are raw clones with every signal blocked, on stacks and thread-local storage that are
//! never paged.

use super::run_leader;
use crate::raw_syscall::{SyscallResult, is_error, syscall3};
use crate::vma_map::AddrRange;
use crate::{dlsym, process_pager};
use std::arch::naked_asm;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use wired::{PAGE, WiredMemory};

/// Threads that read faults, at most: one per processor, all on one userfaultfd; more
/// wake for nothing.
pub const HANDLERS: usize = 8;

/// Bytes of a thread's stack. The fault path keeps no page-sized buffers on it; debug
/// builds need the room, and the first thread runs the handshake.
const STACK: usize = 512 << 10;

/// The role of a thread.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum ThreadRole {
    /// Joins the tree, starts the others, watches.
    Leader = 0,
    /// Evicts.
    Evictor = 1,
    /// Makes requests of the program's.
    Requester = 2,
    /// Reads faults on the n-th allowed processor: `Handler + n`.
    Handler = 3,
}

const ROLES: usize = ThreadRole::Handler as usize + HANDLERS;

/// Stacks and thread control blocks, made once and used again in children of forks.
static STACKS: [AtomicUsize; ROLES] = [const { AtomicUsize::new(0) }; ROLES];
static STORAGE: [AtomicUsize; ROLES] = [const { AtomicUsize::new(0) }; ROLES];
static PROCESSORS: [AtomicU32; HANDLERS] = [const { AtomicU32::new(0) }; HANDLERS];
static HANDLER_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A thread of the pager process.
const THREAD: usize = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_UNTRACED) as usize;

/// Makes the thread control blocks, once: the loader's lock for that may be held by a program's
/// thread that waits for a page later.
pub fn prepare() -> Result<(), String> {
    if HANDLER_COUNT.load(Ordering::Acquire) == 0 {
        let allowed = rustix::thread::sched_getaffinity(None).map_err(|errno| errno.to_string())?;
        let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let mut count = 0;
        for cpu in cpus.take(HANDLERS) {
            PROCESSORS[count].store(cpu as u32, Ordering::Release);
            count += 1;
        }
        HANDLER_COUNT.store(count.max(1), Ordering::Release);
    }
    if STORAGE[0].load(Ordering::Acquire) == 0 {
        make_storage(&STORAGE[..ThreadRole::Handler as usize + handlers()])
            .ok_or("the C library gives the pager's threads no storage")?;
    }
    make_stack(ThreadRole::Leader as usize)
}

/// Makes a thread's stack, once.
fn make_stack(role: usize) -> Result<(), String> {
    let memory = |_| "no memory for the stacks of the pager's threads".to_string();
    if STACKS[role].load(Ordering::Acquire) == 0 {
        let stack = WiredMemory::private(PAGE + STACK).map_err(memory)?.leak() as usize;
        crate::address_space::protect(&(stack..stack + PAGE), libc::PROT_NONE);
        STACKS[role].store(stack, Ordering::Release);
    }
    Ok(())
}

/// Gives back what the calling thread, the first, has used of its stack below where it is now: the
/// handshake goes deep once.
pub fn trim_stack() {
    let here = 0u8;
    let used = std::ptr::from_ref(&here).addr() & !(PAGE - 1);
    let bottom = STACKS[ThreadRole::Leader as usize].load(Ordering::Acquire) + PAGE;
    // The page below is the next call's.
    let length = used.saturating_sub(PAGE + bottom);
    // SAFETY: below every frame of this thread, the only one on this stack.
    unsafe { wired::syscall::madvise(bottom, length, libc::MADV_DONTNEED) };
}

fn handlers() -> usize {
    HANDLER_COUNT.load(Ordering::Acquire)
}

/// Creates the resources of the threads that read faults.
pub fn prepare_handlers() -> Result<(), String> {
    for (n, processor) in PROCESSORS[..handlers()].iter().enumerate() {
        process_pager::prepare_handler(n, processor.load(Ordering::Acquire) as usize)?;
    }
    Ok(())
}

/// Starts the threads that read faults: as urgent as the caller.
pub fn start_handlers() -> Result<(), String> {
    let first = ThreadRole::Handler as usize;
    (first..first + handlers()).try_for_each(start)
}

/// Starts the thread that evicts.
pub fn start_evictor() -> Result<(), String> {
    start(ThreadRole::Evictor as usize)
}

pub fn start(role: usize) -> Result<(), String> {
    make_stack(role)?;
    super::started(spawn_thread(role)).map(|_| ())
}

type InitialiseTls = unsafe extern "C" fn(*mut c_void, bool) -> *mut c_void;
type StaticTls = unsafe extern "C" fn(*mut usize, *mut usize);

/// Offsets in a thread control block that code compiled for this processor reads by
/// itself (the C library's `tcbhead_t`): itself, the vector of the libraries' parts, itself
/// again, stack guard, pointer guard.
const TCB: usize = 0;
const VECTOR: usize = 8;
const SELF: usize = 16;
const GUARDS: [usize; 2] = [40, 48];

/// Bytes above a thread control block's address: glibc's thread descriptor, with room.
const DESCRIPTOR: usize = PAGE;

/// Libraries with thread-local storage that a block has room for: far more than programs load.
/// The loader would make room for more by the program's `realloc`.
const LIBRARIES: usize = 1000;

/// An entry of the vector of the libraries' parts (`dtv_t`): where a part is, and what to free
/// with it. The first has the number of entries, the second a count of changes.
type Entry = [usize; 2];

/// Thread control blocks of our own, with every library's thread-local storage in place, in memory
/// that is never paged. The loader's `_dl_allocate_tls` would have the vectors from the program's
/// `calloc`, which may not work yet. The loader fills the first block, and the others are copies.
fn make_storage(blocks: &[AtomicUsize]) -> Option<()> {
    dlsym::next_function!(INITIALISE = "_dl_allocate_tls_init");
    dlsym::next_function!(SIZE = "_dl_get_tls_static_info");
    let (initialise, sizes) = (INITIALISE.find(), SIZE.find());
    if initialise.is_null() || sizes.is_null() {
        return None;
    }
    let (mut size, mut align) = (0usize, 0usize);
    // SAFETY: the loader's function of this type.
    unsafe { std::mem::transmute::<*mut c_void, StaticTls>(sizes)(&mut size, &mut align) };
    let align = align.max(64);
    let vector = (LIBRARIES + 2) * size_of::<Entry>();
    let length = (vector + size + align + DESCRIPTOR).next_multiple_of(PAGE.max(align));
    let region = WiredMemory::private(blocks.len() * length).ok()?.leak() as usize;
    // SAFETY: the loader's function of this type.
    let initialise = unsafe { std::mem::transmute::<*mut c_void, InitialiseTls>(initialise) };
    let first = (region + length - DESCRIPTOR) & !(align - 1);
    let entries = region as *mut Entry;
    // SAFETY: the vector at the part's start, all zero, with its length; the loader's function
    // of this type, with memory below the block for all static storage, above it for the
    // descriptor, all zero; both blocks are thread control blocks, longer than the offsets.
    unsafe {
        (*entries)[0] = LIBRARIES;
        *((first + VECTOR) as *mut usize) = entries.add(1) as usize;
        if initialise(first as *mut c_void, true).is_null() {
            return None;
        }
        let own = thread_pointer();
        for guard in GUARDS {
            *((first + guard) as *mut usize) = *((own + guard) as *const usize);
        }
    }
    let used = discard_zero_pages(region..region + length);
    for (n, place) in blocks.iter().enumerate() {
        let distance = n * length;
        // SAFETY: parts of one length in the region, at multiples of the alignment; only the first has contents.
        unsafe { copy_storage(region..region + length, &used, distance) };
        let block = first + distance;
        // SAFETY: as above.
        unsafe {
            *((block + VECTOR) as *mut usize) = region + distance + size_of::<Entry>();
            *((block + TCB) as *mut usize) = block;
            *((block + SELF) as *mut usize) = block;
        }
        place.store(block, Ordering::Release);
    }
    Some(())
}

/// Gives back the pages of `part` that are zero, as most of a large `__thread` array of the program's is, which no
/// thread of the pager's uses. Returns the others.
fn discard_zero_pages(part: AddrRange) -> Vec<usize> {
    let is_used = |page: &usize| {
        // SAFETY: a page of the storage, which no thread has yet.
        let words = unsafe { std::slice::from_raw_parts(*page as *const u64, PAGE / 8) };
        words.iter().any(|word| *word != 0)
    };
    let used: Vec<usize> = part.clone().step_by(PAGE).filter(is_used).collect();
    let mut zero = part.start;
    for page in used.iter().copied().chain([part.end]) {
        if page > zero {
            // SAFETY: private memory between used pages, where all is zero: it stays so.
            unsafe { wired::syscall::madvise(zero, page - zero, libc::MADV_DONTNEED) };
        }
        zero = page + PAGE;
    }
    used
}

/// Copies the `used` pages of the first part to the one at `distance`, and has its vector name its own storage.
///
/// # Safety
/// That part is as long, and no thread's.
unsafe fn copy_storage(part: AddrRange, used: &[usize], distance: usize) {
    if distance == 0 {
        return;
    }
    for page in used {
        // SAFETY: the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(*page as *const u8, (page + distance) as *mut u8, PAGE);
        }
    }
    let entries = (part.start + distance) as *mut Entry;
    for n in 0..LIBRARIES + 2 {
        // SAFETY: the vector is at the part's start.
        let entry = unsafe { &mut *entries.add(n) };
        if part.contains(&entry[0]) {
            entry[0] += distance;
        }
    }
}

/// Returns true if the calling thread is one of the pager process's.
pub fn is_pager() -> bool {
    let own = thread_pointer();
    STORAGE
        .iter()
        .any(|block| block.load(Ordering::Relaxed) == own)
}

/// The calling thread's control block.
pub fn thread_pointer() -> usize {
    let own: usize;
    // SAFETY: the first word of a thread control block is its own address.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) own, options(nostack, readonly)) };
    own
}

/// Clones a process with this role, which runs on its own stack and storage.
pub fn spawn(role: ThreadRole, flags: usize, argument: usize) -> SyscallResult {
    let (stack, storage) = (&STACKS[role as usize], &STORAGE[role as usize]);
    let top = stack.load(Ordering::Acquire) + PAGE + STACK;
    let storage = storage.load(Ordering::Acquire);
    let flags = flags | libc::CLONE_SETTLS as usize;
    // SAFETY: a stack and storage of its own; `run_leader` never returns.
    unsafe { clone_onto(flags, top, storage, lead_process, argument) }
}

extern "C" fn lead_process(above: usize) -> ! {
    run_leader(above)
}

fn spawn_thread(role: usize) -> SyscallResult {
    let top = STACKS[role].load(Ordering::Acquire) + PAGE + STACK;
    let storage = STORAGE[role].load(Ordering::Acquire);
    let flags = THREAD | libc::CLONE_SETTLS as usize;
    // SAFETY: a stack and storage of its own; `run` never returns.
    unsafe { clone_onto(flags, top, storage, run, role) }
}

/// A raw clone onto another stack, where `entry(argument)` runs.
///
/// # Safety
/// The stack and the storage are the clone's alone; `entry` fits them.
#[unsafe(naked)]
pub unsafe extern "C" fn clone_onto(
    flags: usize,
    top: usize,
    tls: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> SyscallResult {
    naked_asm!(
        "and rsi, -16",
        "sub rsi, 16",
        "mov [rsi], rcx",
        "mov [rsi + 8], r8",
        "mov r8, rdx",
        "xor edx, edx",
        "xor r10d, r10d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2: xor ebp, ebp",
        "pop rax",
        "pop rdi",
        "call rax",
        "ud2",
        clone = const libc::SYS_clone,
    )
}

extern "C" fn run(role: usize) -> ! {
    if role == ThreadRole::Evictor as usize {
        name(c"selfpage-evict");
        process_pager::evictor_main()
    }
    if role == ThreadRole::Requester as usize {
        name(c"selfpage-shared");
        super::requests::serve()
    }
    name(c"selfpage-handle");
    let n = role - ThreadRole::Handler as usize;
    let cpu = PROCESSORS[n].load(Ordering::Acquire) as usize;
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // A processor taken away since: unpinned is slower, not wrong.
    let _ = rustix::thread::sched_setaffinity(None, &set);
    process_pager::handler_main(n)
}

/// Names the calling thread.
pub fn name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// The threads that read faults of a program with a reservation of its own (SCHED_DEADLINE,
/// which pinned threads cannot have) run before all ordinary work, else its faults would wait
/// for that. There is at most one fault of each of its threads at a time. The calling thread
/// takes that class for those that it starts. Returns true where it has it.
pub fn set_rt_priority(program: i32) -> bool {
    // SAFETY: a query without effect.
    let answer = unsafe { syscall3(libc::SYS_sched_getscheduler, program as usize, 0, 0) };
    let policy = answer as i32 & !libc::SCHED_RESET_ON_FORK;
    // Without the right to it the threads are ordinary ones.
    !is_error(answer) && policy == libc::SCHED_DEADLINE && set_policy(libc::SCHED_FIFO, 1)
}

/// The calling thread is an ordinary one again.
pub fn clear_rt_priority() {
    set_policy(libc::SCHED_OTHER, 0);
}

fn set_policy(policy: i32, sched_priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority };
    let at = std::ptr::from_ref(&parameters) as usize;
    // SAFETY: a structure that the kernel reads.
    !is_error(unsafe { syscall3(libc::SYS_sched_setscheduler, 0, policy as usize, at) })
}
