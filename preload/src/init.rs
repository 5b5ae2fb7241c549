//! The constructor: a new image joins the tree; and again in the child of a fork.

use crate::cancellation;
use crate::process_pager::{ForkGate, ForkOutcome};
use crate::raw_syscall::{kill_self, syscall3};
use crate::vma_map::Lookup;
use crate::{
    address_space, adopt, diagnostics, dlsym, exec, fork, heap, library_data, limits, malloc,
    paged_memory, pager_process, process_pager, pthread, shared_memory, supervisor,
};
use link::client::{Connection, SupervisorPort};
use link::handshake::{Hello, ProgramPlace};
use rustix::process::{Resource, getrlimit};
use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;
use wired::{HUGE_RANGE, Lock};

/// Addresses of the heap mimalloc gets at once, about half of an arena: what it maps beyond goes the
/// program's way. A multiple of its 32 MiB segments.
const HEAP: usize = 2 << 30;

/// mimalloc's segment, and the alignment it needs.
const SEGMENT: usize = 32 << 20;

/// The status of a process that could not be given a pager, as `run`'s own failures.
pub const EXIT_FAILED: c_int = 125;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array.00099")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;

/// The loader calls this before any other constructor. It passes the environment: the C
/// library's `environ` is not set yet.
extern "C" fn constructor(_: c_int, _: *const *const c_char, environ: *const *const c_char) {
    library_data::find();
    let candidates = adopt::find_candidates();
    // SAFETY: the loader's array.
    match unsafe { SupervisorEndpoint::from(environ) } {
        SupervisorEndpoint::None => {
            // SAFETY: the constructor, one thread.
            unsafe { malloc::init(None) };
            return;
        }
        SupervisorEndpoint::Plain => paged_memory::start_plain(),
        SupervisorEndpoint::Attached(port) => supervisor::set_port(port),
    }
    // SAFETY: the loader's array.
    let lifted = unsafe { limits::lift_inherited(environ) };
    // SAFETY: as above.
    unsafe { exec::save_environment(environ) };
    library_data::populate();
    diagnostics::init();
    cancellation::init();
    pthread::init();
    fork::init();
    let before = limits::mapped_by_program();
    fit_arenas();
    *FIRST_MEMORY.lock() = Some(FirstMemory {
        candidates,
        heap: None,
    });
    if let Err(why) = pager_process::start(attach, None) {
        diagnostics::log(format_args!("{why}"));
        exit_group(EXIT_FAILED);
    }
    let heap = FIRST_MEMORY.lock().take().and_then(|memory| memory.heap);
    limits::init(lifted, before, heap.as_ref().map_or(0, Range::len));
    address_space::activate();
    // SAFETY: the constructor, one thread; the heap is fresh.
    unsafe { malloc::init(heap) };
    dlsym::find_all();
}

/// Returns true for a variable by which Valgrind preloads its library into a guest: Valgrind refuses the clone that makes
/// a pager process.
fn is_valgrinds(variable: &CStr) -> bool {
    const LIBRARY: &[u8] = b"/vgpreload_core";
    let preloaded = variable.to_bytes().strip_prefix(b"LD_PRELOAD=");
    preloaded.is_some_and(|list| list.windows(LIBRARY.len()).any(|at| at == LIBRARY))
}

/// The mode that the environment selects.
enum SupervisorEndpoint {
    None,
    Plain,
    Attached(SupervisorPort),
}

impl SupervisorEndpoint {
    /// # Safety
    /// `environ` is an array of C strings ended by null, or null.
    unsafe fn from(environ: *const *const c_char) -> Self {
        let mut at = environ;
        // SAFETY: the caller's.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
            // SAFETY: a C string of the array.
            let entry = unsafe { CStr::from_ptr(*entry) };
            if entry == c"SELFPAGE_PORT=plain" {
                return Self::Plain;
            }
            if is_valgrinds(entry) {
                return Self::None;
            }
            at = at.wrapping_add(1);
        }
        // SAFETY: the caller's.
        unsafe { SupervisorPort::from_environ(environ) }.map_or(Self::None, Self::Attached)
    }
}

/// The memory that a new image has from its start.
struct FirstMemory {
    /// What it adopts.
    candidates: adopt::Candidates,
    /// Addresses for mimalloc, in the first arena.
    heap: Option<Range<usize>>,
}

/// Passed to the pager process, which registers it while it has the descriptors at hand: later
/// each call would wait for the evictor's thread, which starts after the program.
static FIRST_MEMORY: Lock<Option<FirstMemory>> = Lock::new(None);

/// Starts the child of a fork, before other code runs in it.
pub fn attach_child(gate: ForkGate) {
    let domain = gate.child();
    if let Err(why) = pager_process::start(attach, Some(gate)) {
        if pager_process::is_killed() {
            // As a program whose pager process is killed later: its parent may know it for one that has a pager.
            kill_self();
        }
        diagnostics::log(format_args!(
            "fork refused: the child cannot be given a pager: {why}"
        ));
        process_pager::signal_parent(domain, ForkOutcome::Refused);
        exit_group(EXIT_FAILED);
    }
}

/// Handshake and pager, in a pager process.
fn attach(gate: Option<ForkGate>, program: ProgramPlace) -> Result<Option<Connection>, String> {
    let forked = gate.is_some();
    let connection = join(gate, program)?;
    if process_pager::handlers_need_rights() {
        // The child of a fork may be refused until its parent goes on.
        pager_process::prepare_handlers()?;
    }
    if forked {
        fork::lose_unforked();
        process_pager::signal_parent(supervisor::domain(), ForkOutcome::Inherited);
    } else if let Some(memory) = FIRST_MEMORY.lock().as_mut() {
        memory.heap = first_arena();
        adopt::adopt_all(&memory.candidates).map_err(|error| error.to_string())?;
    }
    Ok(connection)
}

fn join(gate: Option<ForkGate>, program: ProgramPlace) -> Result<Option<Connection>, String> {
    let Some(port) = supervisor::port() else {
        return Ok(None);
    };
    let parent = supervisor::domain();
    let is_fork = gate.is_some();
    let hello = match &gate {
        Some(gate) => Hello::Fork {
            parent,
            child: gate.child(),
            program,
        },
        None => Hello::Exec { program },
    };
    let joined = port.join(hello).map_err(|why| why.to_string())?;
    supervisor::on_welcome(&joined.welcome);
    pager_process::set_connection(&joined.connection);
    let connection = process_pager::attach(gate, joined)?;
    if is_fork {
        shared_memory::inherit(connection.fd())?;
    }
    Ok(Some(connection))
}

/// Ends the process, all its threads, without any handlers.
pub fn exit_group(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { syscall3(libc::SYS_exit_group, status as usize, 0, 0) };
    }
}

/// Arenas as large as the process's limits allow.
fn fit_arenas() {
    /// A limit of address space that the heaps' reserve is a small part of.
    const LARGE_LIMIT: usize = 1 << 30;

    let limit = getrlimit(Resource::As).current.map(|limit| limit as usize);
    let mut mode = [0u8; 1];
    let strict = rustix::fs::open(
        c"/proc/sys/vm/overcommit_memory",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .is_ok_and(|file| rustix::io::read(&file, &mut mode[..]).is_ok() && mode[0] == b'2');
    address_space::fit_arenas(limit, strict);
    // Every reserved byte would be committed, or counted.
    if !strict && limit.is_none_or(|limit| limit >= LARGE_LIMIT) {
        heap::init();
    }
}

/// The first arena, and mimalloc's part of it.
fn first_arena() -> Option<Range<usize>> {
    let space = &mut address_space::lock();
    space.add_arena(HUGE_RANGE)?;
    // A limit on address space makes arenas smaller.
    let mut size = HEAP.min(space.map.free() / 2) & !(SEGMENT - 1);
    while size >= 2 * SEGMENT {
        // Only what is there: no further arena for this.
        if let Some(start) = space
            .map
            .place(size, SEGMENT)
            .filter(|at| at.is_multiple_of(SEGMENT))
        {
            let heap = start..start + size;
            debug_assert!(
                space
                    .map
                    .lookup(&heap)
                    .iter()
                    .all(|p| p.state == Lookup::Free)
            );
            space.map_in_arena(&heap, address_space::RW);
            return Some(heap);
        }
        size /= 2;
    }
    None
}
