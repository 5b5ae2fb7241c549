//! The pager's threads: one per processor that reads faults, one that evicts, one that
//! keeps watch.
//!
//! They are raw clones. They have a descriptor table of their own, so that a program's
//! `close_range(3, ~0)` does not close the userfaultfd (it would read zeros); every
//! signal blocked; stacks and thread-local storage that are never paged. They are
//! unknown to the C library: a `setuid` does not reach them.

use crate::bootstrap::FORCED;
use crate::raw::{self, Answer};
use crate::{next, notice, pager};
use std::arch::naked_asm;
use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use wired::{PAGE, Region, futex};

/// Threads that read faults, at most: one per processor, all on one userfaultfd; more
/// wake for nothing.
pub const ENTRIES: usize = 8;

/// Bytes of a thread's stack. The fault path keeps no page-sized buffers on it; debug
/// builds need the room.
const STACK: usize = 256 << 10;

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
static PROCESSORS: [AtomicU32; ENTRIES] = [const { AtomicU32::new(0) }; ENTRIES];
static ENTRY_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The connection the keeper watches; -1 where there is none.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);

/// Set when the keeper has left the program's descriptors and started the others.
static READY: AtomicU32 = AtomicU32::new(0);

const SHARED: usize = (libc::CLONE_VM
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS) as usize;

/// The descriptors open in the calling thread's table.
pub struct Descriptors {
    numbers: Vec<RawFd>,
}

impl Descriptors {
    /// Those open now.
    pub fn now() -> Self {
        let mut numbers = Vec::new();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let Ok(dir) = rustix::fs::open(c"/proc/self/fd", flags, rustix::fs::Mode::empty()) else {
            // Without /proc: those that are usual.
            return Self { numbers: (0..1024).filter(|fd| is_open(*fd)).collect() };
        };
        let own = rustix::fd::AsRawFd::as_raw_fd(&dir);
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 2048];
        let mut entries = rustix::fs::RawDir::new(&dir, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let number: Option<RawFd> = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            numbers.extend(number.filter(|fd| *fd != own));
        }
        numbers.sort_unstable();
        Self { numbers }
    }

    /// Those of ours that are not of `before`.
    pub fn since(&self, before: &Self) -> Self {
        let new = |fd: &RawFd| before.numbers.binary_search(fd).is_err();
        Self { numbers: self.numbers.iter().copied().filter(new).collect() }
    }

    /// Closes all of them in the calling thread's table.
    fn close(&self) {
        for fd in &self.numbers {
            // SAFETY: nobody in this table uses them any more.
            unsafe { raw::call3(libc::SYS_close, *fd as usize, 0, 0) };
        }
    }
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: asks, changes nothing.
    !raw::failed(unsafe { raw::call3(libc::SYS_fcntl, fd as usize, libc::F_GETFD as usize, 0) })
}

/// What the keeper closes in its table. Written before it starts.
static FOREIGN: wired::Lock<Option<Descriptors>> = wired::Lock::new(None);

/// Starts all threads. `program` are the descriptors that are the program's; `ours` go
/// with the threads and are closed for the program. In the constructor, or in the child
/// of a fork: the only thread, signals blocked.
pub fn start(program: Descriptors, ours: &Descriptors, connection: Option<RawFd>) -> Result<(), Answer> {
    CONNECTION.store(connection.unwrap_or(-1), Ordering::Release);
    READY.store(0, Ordering::Release);
    *FOREIGN.lock() = Some(program);
    let mask = raw::Quiet::new();
    let answer = spawn(Task::Keeper as usize, 0);
    drop(mask);
    if raw::failed(answer) {
        return Err(answer);
    }
    while READY.load(Ordering::Acquire) == 0 {
        futex::wait(&READY, 0, None);
    }
    ours.close();
    match READY.load(Ordering::Acquire) {
        1 => {
            pager::threads_run();
            Ok(())
        }
        errno => Err(-(errno as Answer)),
    }
}

/// Makes stacks and storage, once, and what the pager needs for each thread.
pub fn prepare() -> Result<(), String> {
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
    for n in 0..entries {
        pager::prepare_entry(n, PROCESSORS[n].load(Ordering::Acquire) as usize)?;
    }
    pager::leave_table();
    Ok(())
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
    let made = unsafe { std::mem::transmute::<*mut c_void, AllocateTls>(allocate)(block as *mut c_void) };
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
    unsafe { clone_thread(SHARED | flags, top, 0, 0, STORAGE[task].load(Ordering::Acquire), run, task) }
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
        pager::entry_main(n)
    }
}

fn name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Leaves the program's descriptors, starts the others into its own table, then watches
/// for the end of the system domain: this process must end with it.
fn keep() -> ! {
    if let Some(foreign) = &*FOREIGN.lock() {
        foreign.close();
    }
    let mut ready = 1;
    let entries = ENTRY_COUNT.load(Ordering::Acquire);
    for task in (Task::Entry as usize..Task::Entry as usize + entries).chain([Task::Evictor as usize]) {
        let answer = spawn(task, libc::CLONE_FILES as usize);
        if raw::failed(answer) {
            ready = -answer as u32;
        }
    }
    READY.store(ready, Ordering::Release);
    futex::wake_all(&READY);
    let fd = CONNECTION.load(Ordering::Acquire);
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let at = std::ptr::from_mut(&mut poll) as usize;
        // SAFETY: one entry that lives through the call.
        unsafe { raw::call3(libc::SYS_poll, at, 1, usize::MAX) };
        if poll.revents != 0 {
            notice::gone();
        }
    }
}
