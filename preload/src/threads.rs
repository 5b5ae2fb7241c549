//! The pager's threads: one per processor that reads faults, one that evicts, one that
//! keeps watch.
//!
//! They are raw clones. They have a descriptor table of their own, so that a program's
//! `close_range(3, ~0)` does not close the userfaultfd (it would read zeros); every
//! signal blocked; stacks and thread-local storage that are never paged. They are
//! unknown to the C library: a `setuid` does not reach them.

use crate::bootstrap::FORCED;
use crate::pager::Gate;
use crate::raw::{self, Answer};
use crate::{link, next, notice, pager};
use std::arch::naked_asm;
use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use wired::{Lock, PAGE, Region, futex};

/// Threads that read faults, at most: one per processor, all on one userfaultfd; more
/// wake for nothing.
pub const ENTRIES: usize = 8;

/// Bytes of a thread's stack. The fault path keeps no page-sized buffers on it; debug
/// builds need the room, and the keeper runs the handshake.
const STACK: usize = 512 << 10;

/// What a thread does.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Task {
    Keeper = 0,
    Evictor = 1,
    /// On the n-th allowed processor: `Entry + n`.
    Entry = 2,
}

const CREW: usize = Task::Entry as usize + ENTRIES;

/// Stacks and thread control blocks, made once and used again in children of forks.
static STACKS: [AtomicUsize; CREW] = [const { AtomicUsize::new(0) }; CREW];
static STORAGE: [AtomicUsize; CREW] = [const { AtomicUsize::new(0) }; CREW];
/// Their numbers, as long as they run.
static NUMBERS: [AtomicI32; CREW] = [const { AtomicI32::new(0) }; CREW];
static PROCESSORS: [AtomicU32; ENTRIES] = [const { AtomicU32::new(0) }; ENTRIES];
static ENTRY_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Set when the keeper has come in and started the others, or could not.
static READY: AtomicU32 = AtomicU32::new(0);

const SHARED: usize = (libc::CLONE_VM
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS) as usize;

/// How a process comes in: handshake and engine. Runs in the keeper. Returns the
/// connection to watch, if there is one.
pub type ComeIn = fn(Option<Gate>) -> Result<Option<RawFd>, String>;

/// What the keeper starts with.
struct Order {
    come_in: ComeIn,
    gate: Option<Gate>,
}

// SAFETY: a fork's gate is held by the process, not by the thread that closed it: that
// thread waits for the keeper.
unsafe impl Send for Order {}

static ORDER: Lock<Option<Order>> = Lock::new(None);

/// Why the keeper could not do it.
static FAILURE: Lock<Option<String>> = Lock::new(None);

/// Starts all threads; returns when they run. In the constructor, or in the child of a
/// fork: the only thread.
///
/// Everything is done in the keeper, which has a descriptor table of its own: not even
/// for a moment does the program's hold one of ours, and it may be full.
pub fn start(come_in: ComeIn, gate: Option<Gate>) -> Result<(), String> {
    prepare()?;
    READY.store(0, Ordering::Release);
    *ORDER.lock() = Some(Order { come_in, gate });
    let mask = raw::Quiet::new();
    let answer = spawn(Task::Keeper as usize, 0);
    drop(mask);
    if raw::failed(answer) {
        return Err(no_thread(answer));
    }
    while READY.load(Ordering::Acquire) == 0 {
        futex::wait(&READY, 0, None);
    }
    FAILURE.lock().take().map_or(Ok(()), Err)
}

fn no_thread(answer: Answer) -> String {
    let why = std::io::Error::from_raw_os_error(-answer as i32);
    format!(
        "the pager's threads cannot start ({why}): raise `ulimit -u`, or run less on this machine"
    )
}

/// Leaves the program's descriptors. The port stays: notices go through it.
fn leave_descriptors() {
    // SAFETY: this table is the keeper's own, and it uses none of them.
    let close = |first: u32, last: u32| unsafe {
        raw::call3(libc::SYS_close_range, first as usize, last as usize, 0)
    };
    match link::guarded_fd().map(|fd| fd as u32) {
        Some(port) => {
            if port > 0 {
                close(0, port - 1);
            }
            close(port + 1, u32::MAX);
        }
        None => {
            close(0, u32::MAX);
        }
    }
}

/// Makes stacks and storage, once.
fn prepare() -> Result<(), String> {
    let memory = |_| "no memory for the stacks of the pager's threads".to_string();
    if ENTRY_COUNT.load(Ordering::Acquire) == 0 {
        let allowed = rustix::thread::sched_getaffinity(None).map_err(|errno| errno.to_string())?;
        let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let mut count = 0;
        for cpu in cpus.take(ENTRIES) {
            PROCESSORS[count].store(cpu as u32, Ordering::Release);
            count += 1;
        }
        ENTRY_COUNT.store(count.max(1), Ordering::Release);
    }
    let entries = ENTRY_COUNT.load(Ordering::Acquire);
    for n in 0..Task::Entry as usize + entries {
        if STACKS[n].load(Ordering::Acquire) == 0 {
            let stack = Region::private(PAGE + STACK).map_err(memory)?.leak() as usize;
            crate::space::protect(&(stack..stack + PAGE), libc::PROT_NONE);
            STACKS[n].store(stack, Ordering::Release);
        }
        if STORAGE[n].load(Ordering::Acquire) == 0 {
            let storage = storage().ok_or("the C library gives the pager's threads no storage")?;
            STORAGE[n].store(storage, Ordering::Release);
        }
    }
    Ok(())
}

/// Whether a number is an open descriptor of the calling thread's table.
pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: asks, changes nothing.
    !raw::failed(unsafe { raw::call3(libc::SYS_fcntl, fd as usize, libc::F_GETFD as usize, 0) })
}

type AllocateTls = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type StaticTls = unsafe extern "C" fn(*mut usize, *mut usize);

/// Offsets in a thread control block that code compiled for this processor reads by
/// itself (the C library's `tcbhead_t`): itself, itself again, stack guard, pointer guard.
const TCB: usize = 0;
const SELF: usize = 16;
const GUARDS: [usize; 2] = [40, 48];

/// Bytes above a thread control block's address: glibc's thread descriptor, with room.
const DESCRIPTOR: usize = PAGE;

/// A thread control block of our own, with every library's thread-local storage in
/// place, in memory that is never paged.
fn storage() -> Option<usize> {
    static ALLOCATE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    static SIZE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let allocate = next::find(&ALLOCATE, "_dl_allocate_tls\0");
    let sizes = next::find(&SIZE, "_dl_get_tls_static_info\0");
    if allocate.is_null() || sizes.is_null() {
        return None;
    }
    let (mut size, mut align) = (0usize, 0usize);
    // SAFETY: the loader's function of this type.
    unsafe { std::mem::transmute::<*mut c_void, StaticTls>(sizes)(&mut size, &mut align) };
    let align = align.max(64);
    let region = Region::private(size + align + DESCRIPTOR).ok()?;
    let end = region.as_ptr() as usize + region.len();
    let block = (end - DESCRIPTOR) & !(align - 1);
    // What it allocates besides (a vector of the libraries' parts) must not be paged.
    FORCED.store(true, Ordering::Release);
    // SAFETY: the loader's function of this type; memory below the block for all static
    // storage, above it for the descriptor, all zero.
    let made =
        unsafe { std::mem::transmute::<*mut c_void, AllocateTls>(allocate)(block as *mut c_void) };
    FORCED.store(false, Ordering::Release);
    if made.is_null() {
        return None;
    }
    region.leak();
    let own = thread_pointer();
    // SAFETY: both are thread control blocks, longer than the offsets.
    unsafe {
        *((block + TCB) as *mut usize) = block;
        *((block + SELF) as *mut usize) = block;
        for guard in GUARDS {
            *((block + guard) as *mut usize) = *((own + guard) as *const usize);
        }
    }
    Some(block)
}

/// Whether the calling thread is one of the pager's.
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

fn spawn(task: usize, flags: usize) -> Answer {
    let top = STACKS[task].load(Ordering::Acquire) + PAGE + STACK;
    // SAFETY: a stack and storage of its own; `run` never returns.
    unsafe {
        clone_thread(
            SHARED | flags,
            top,
            0,
            0,
            STORAGE[task].load(Ordering::Acquire),
            run,
            task,
        )
    }
}

/// A raw clone onto another stack, where `entry(arg)` runs.
#[unsafe(naked)]
unsafe extern "C" fn clone_thread(
    flags: usize,
    top: usize,
    ptid: usize,
    ctid: usize,
    tls: usize,
    entry: extern "C" fn(usize) -> !,
    arg: usize,
) -> Answer {
    naked_asm!(
        "and rsi, -16",
        "sub rsi, 16",
        "mov [rsi], r9",
        "mov rax, [rsp + 8]",
        "mov [rsi + 8], rax",
        "mov r10, rcx",
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

extern "C" fn run(task: usize) -> ! {
    NUMBERS[task].store(raw::tid(), Ordering::Release);
    if task == Task::Keeper as usize {
        name(c"selfpage-keeper");
        keep()
    } else if task == Task::Evictor as usize {
        name(c"selfpage-evict");
        pager::evictor_main()
    } else {
        name(c"selfpage-entry");
        let n = task - Task::Entry as usize;
        let cpu = PROCESSORS[n].load(Ordering::Acquire) as usize;
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        // A processor taken away since: unpinned is slower, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &set);
        be_urgent();
        pager::entry_main(n)
    }
}

/// The entries of a program with a reservation of its own (SCHED_DEADLINE, which pinned
/// threads cannot have) run before all ordinary work, else its faults would wait for that.
/// There is at most one fault of each of its threads at a time.
fn be_urgent() {
    let policy = |thread: i32| {
        // SAFETY: asks.
        let answer = unsafe { raw::call3(libc::SYS_sched_getscheduler, thread as usize, 0, 0) };
        (!raw::failed(answer)).then_some(answer as i32 & !libc::SCHED_RESET_ON_FORK)
    };
    let program = rustix::process::getpid().as_raw_nonzero().get();
    if policy(program) == Some(libc::SCHED_DEADLINE) {
        let lowest = libc::sched_param { sched_priority: 1 };
        let at = std::ptr::from_ref(&lowest) as usize;
        // SAFETY: a structure that the kernel reads. Without the right to it the entry is as
        // it was.
        unsafe {
            raw::call3(
                libc::SYS_sched_setscheduler,
                0,
                libc::SCHED_FIFO as usize,
                at,
            )
        };
    }
}

/// Whether a thread of this process is one of the pager's, by its number.
pub fn is_crew(thread: i32) -> bool {
    let of = |number: &AtomicI32| number.load(Ordering::Acquire) == thread;
    NUMBERS.iter().any(of)
}

fn name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Comes in, starts the others, then watches for the end of the system domain: this
/// process must end with it.
fn keep() -> ! {
    leave_descriptors();
    let connection = begin().unwrap_or_else(|why| {
        *FAILURE.lock() = Some(why);
        None
    });
    let mut paced = pager::Paced::begin();
    READY.store(1, Ordering::Release);
    futex::wake_all(&READY);
    let fd = connection.unwrap_or(-1);
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let at = std::ptr::from_mut(&mut poll) as usize;
        // SAFETY: one entry that lives through the call.
        unsafe { raw::call3(libc::SYS_poll, at, 1, STILL) };
        if poll.revents != 0 {
            notice::gone();
        }
        paced.follow(false);
        if let Some(status) = deserted() {
            crate::start::exit(status);
        }
    }
}

/// Milliseconds between looks at whether the program's threads are all gone, and at the limits.
const STILL: usize = 1000;

/// The exit status of a process whose own threads have all ended, one by one, without
/// ending the process (a bare `SYS_exit`): the pager's would keep it alive.
fn deserted() -> Option<i32> {
    use rustix::fs::{Mode, OFlags, open};
    let mut text = [0u8; 1024];
    let file = open(
        c"/proc/self/stat",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let n = rustix::io::read(&file, &mut text[..]).ok()?;
    // The name, in brackets, may hold anything: fields are counted behind it.
    let rest = text[..n].rsplit(|b| *b == b')').next()?;
    let mut fields = rest.split(|b| *b == b' ' || *b == b'\n').skip(1);
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse::<usize>().ok();
    let zombie = fields.next()? == b"Z";
    // Fields 20 and 52 of all: threads, exit code.
    let threads = number(fields.nth(16));
    let code = number(fields.nth(31)).unwrap_or(0);
    let ours = Task::Entry as usize + ENTRY_COUNT.load(Ordering::Acquire);
    // The leader counts, too, until it is reaped.
    (zombie && threads.is_some_and(|threads| threads <= ours + 1))
        .then_some((code >> 8) as i32 & 0xff)
}

fn begin() -> Result<Option<RawFd>, String> {
    let Some(order) = ORDER.lock().take() else {
        return Ok(None);
    };
    let connection = (order.come_in)(order.gate)?;
    let entries = ENTRY_COUNT.load(Ordering::Acquire);
    for (n, processor) in PROCESSORS[..entries].iter().enumerate() {
        pager::prepare_entry(n, processor.load(Ordering::Acquire) as usize)?;
    }
    let first = Task::Entry as usize;
    for task in (first..first + entries).chain([Task::Evictor as usize]) {
        let answer = spawn(task, libc::CLONE_FILES as usize);
        if raw::failed(answer) {
            return Err(no_thread(answer));
        }
    }
    pager::threads_run();
    Ok(connection)
}
