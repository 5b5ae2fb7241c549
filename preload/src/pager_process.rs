//! The pager process: a process beside the program that shares its memory and holds all that
//! the pager needs: the userfaultfd, the rings, the threads that read faults and evict.
//!
//! It is a clone with CLONE_VM and nothing else in common, so the program does not show it: it
//! is not a thread of the program (`unshare(CLONE_NEWUSER)`, leak checkers, seccomp's TSYNC and
//! debuggers find the program's own threads only), nor a child that `wait` finds. Its
//! descriptors, credentials, root directory, session and signal dispositions are its own.
//!
//! - *Start.* The program clones a trampoline, the trampoline clones the pager process and
//!   exits once that serves. So the nearest subreaper is the parent, in most trees `run`. The
//!   first process of a PID namespace is the subreaper of everything in it: there the
//!   trampoline becomes the pager process itself, a child that `wait` does not find (its exit
//!   signal is 0).
//! - *End.* The pager process ends when the program has ended (by a pidfd) or has replaced its
//!   image ([`program`]). The program is killed by the kernel when the pager process or the
//!   supervisor ends first ([`lifeline`]); until it is dead the supervisor's copy of the
//!   userfaultfd keeps its missing pages from reading as zeros.
//! - *Rights.* It gives up what it has while the program begins ([`confine`]), before it reads a fault.

mod call_filter;
mod confine;
mod deadline;
mod lifeline;
mod program;
pub mod requests;
mod threads;
mod trampoline;

use crate::process_pager::{ForkGate, ForkOutcome};
use crate::raw_syscall::{SignalsBlocked, SyscallResult, error, is_error, reap, syscall3};
use crate::{diagnostics, process_pager, raw_syscall};
use host::seqpacket;
use lifeline::Lifeline;
use link::client::Connection;
use link::handshake::{ChildMessage, Message, ProgramPlace};
use program::Program;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, test_kill_process};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use threads::ThreadRole;
use wired::{Lock, futex};

pub use threads::{HANDLERS, is_pager, prepare_handlers, thread_pointer};

/// How a process joins the tree: handshake and pager. Runs in the pager process, whose
/// program is there.
pub type AttachFn = fn(Option<ForkGate>, ProgramPlace) -> Result<Option<Connection>, String>;

/// The arguments of the pager process.
struct StartArgs {
    join: AttachFn,
    gate: Option<ForkGate>,
}

// SAFETY: a fork's gate is held by the process, not by the thread that closed it: that
// thread waits for the pager process.
unsafe impl Send for StartArgs {}

static START_ARGS: Lock<Option<StartArgs>> = Lock::new(None);

/// The reason that the pager process could not start.
static FAILURE: Lock<Option<String>> = Lock::new(None);

/// The stage of the start: [`STARTING`] and so on.
static STAGE: AtomicU32 = AtomicU32::new(STARTING);

/// The pager process joins the tree.
const STARTING: u32 = 0;
/// It serves, or has failed.
const SERVING: u32 = 1;

/// The pager process, or what starts it, was killed before it served.
static IS_KILLED: AtomicBool = AtomicBool::new(false);

/// The program's process number, as its own PID namespace has it.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// The pager process's own, there; 0 before it has begun.
static PAGER: AtomicI32 = AtomicI32::new(0);

/// The connection to the supervisor, by its number in the pager process's table.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);

/// The control block of the program's thread that started the pager process.
static PROGRAM_STORAGE: AtomicUsize = AtomicUsize::new(0);

/// The program's memory alone, and 0 for a signal: the clone's end announces itself to no parent.
const BESIDE: usize = (libc::CLONE_VM | libc::CLONE_UNTRACED) as usize;

/// The program is the parent of the pager process.
const CHILD: usize = 1;
/// The trampoline is.
const GRANDCHILD: usize = 2;

/// Interval at which a process that waits for a stage checks that the other is alive.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval at which the pager process checks conditions without an event: whether the program has
/// replaced its image, and the fault limits.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the pager process; returns when it serves. In the constructor, or in the child of a
/// fork: the program has one thread.
///
/// The pager process does all the work, in a descriptor table of its own: the program's table
/// never holds a descriptor of ours, not even for a moment, and may be full.
pub fn start(join: AttachFn, gate: Option<ForkGate>) -> Result<(), String> {
    threads::prepare()?;
    if gate.is_none() {
        program::find_number();
    }
    STAGE.store(STARTING, Ordering::Release);
    PROGRAM.store(raw_syscall::pid(), Ordering::Release);
    PAGER.store(0, Ordering::Release);
    PROGRAM_STORAGE.store(thread_pointer(), Ordering::Release);
    *START_ARGS.lock() = Some(StartArgs { join, gate });
    let _blocked = SignalsBlocked::new();
    if raw_syscall::pid() == 1 {
        let spawn = || threads::spawn(ThreadRole::Leader, BESIDE, CHILD);
        let clone = deadline::clone_of_any_class(spawn);
        await_ready(started(clone)?)?;
    } else {
        let _subreaper = trampoline::SubreaperGuard::new();
        let trampoline = started(deadline::clone_of_any_class(trampoline::clone))?;
        await_ready(trampoline)?;
        reap(trampoline, libc::__WCLONE);
    }
    FAILURE.lock().take().map_or(Ok(()), Err)?;
    Ok(())
}

/// Returns true if [`start`] failed because the pager process was killed.
pub fn is_killed() -> bool {
    IS_KILLED.load(Ordering::Acquire)
}

/// Advances the start to the next stage.
fn set_stage(stage: u32) {
    STAGE.store(stage, Ordering::Release);
    futex::wake_all(&STAGE);
}

/// The number of a clone, or the error.
fn started(clone: SyscallResult) -> Result<i32, String> {
    if !is_error(clone) {
        return Ok(clone as i32);
    }
    let why = std::io::Error::from_raw_os_error(-clone as i32);
    Err(format!(
        "the pager process cannot start ({why}): raise `ulimit -u`, or run less on this machine"
    ))
}

/// Waits until the pager process serves. The caller's clone ends before that only where it
/// fails, or is killed.
fn await_ready(clone: i32) -> Result<(), String> {
    while STAGE.load(Ordering::Acquire) == STARTING {
        futex::wait(&STAGE, STARTING, Some(POLL_INTERVAL));
        if STAGE.load(Ordering::Acquire) == STARTING && reap(clone, libc::WNOHANG | libc::__WCLONE)
        {
            IS_KILLED.store(true, Ordering::Release);
            return Err("the pager process ended while it started".into());
        }
    }
    Ok(())
}

/// Passes the program the reason that it has no pager.
fn fail(why: String) {
    FAILURE.lock().get_or_insert(why);
    set_stage(SERVING);
}

/// The pager process's first thread: joins the tree, starts the others, then watches for the
/// end of the program and of the supervisor.
fn run_leader(above: usize) -> ! {
    // A fork's parent had another one.
    CONNECTION.store(-1, Ordering::Release);
    PAGER.store(raw_syscall::pid(), Ordering::Release);
    requests::forget();
    confine::leave_program();
    wired::clock::prepare();
    let mut watch = match join(above) {
        Ok(watch) => watch,
        Err(why) => {
            fail(why);
            exit()
        }
    };
    // The program continues meanwhile: its requests to the evictor wait for that.
    process_pager::threads_run(PROGRAM.load(Ordering::Acquire) as u32);
    confine::leave_user();
    set_stage(SERVING);
    // A program that does little has ended, or has begun another, before this thread runs again.
    watch.exit_if_over();
    confine::filter_calls();
    if watch.realtime {
        watch.start_handlers();
        threads::clear_rt_priority();
    }
    if let Err(why) = threads::start_evictor() {
        end_program(&why);
    }
    watch.run()
}

/// Sends a message by the pager process's own connection, which needs no further descriptor. Returns
/// true if it is sent; a thread of the program cannot send one so.
pub fn say(message: ChildMessage<'_>) -> bool {
    let bytes = message.encode();
    connection().is_some_and(|connection| {
        seqpacket::send(connection, bytes.as_slice(), &[], SendFlags::DONTWAIT).is_ok()
    })
}

/// Makes this connection the one that requests go by. The caller has it open until the pager process ends.
pub fn set_connection(connection: &Connection) {
    CONNECTION.store(connection.fd().as_raw_fd(), Ordering::Release);
}

/// The connection to the supervisor, of a thread of the pager process.
pub fn connection() -> Option<BorrowedFd<'static>> {
    let number = CONNECTION.load(Ordering::Acquire);
    if number < 0 || !is_pager() {
        return None;
    }
    // SAFETY: the pager process has it open until it ends, and the calling thread is one of its.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Ends this process if its pager process has gone: the program's end took it along, and this one (a child of vfork, say)
/// has the program's memory still.
pub fn end_if_gone() {
    let pager = Pid::from_raw(PAGER.load(Ordering::Acquire));
    if pager.is_some_and(|pager| test_kill_process(pager) == Err(Errno::SRCH)) {
        diagnostics::log(format_args!(
            "the program that this process shares its memory with has ended, and its pager: this one cannot go on, and ends"
        ));
        std::process::abort();
    }
}

/// Ends the program, whose pager process cannot have the threads that it needs.
fn end_program(why: &str) -> ! {
    diagnostics::log(format_args!(
        "the program ends, since its pager process cannot serve it: {why}"
    ));
    // The lifeline.
    exit()
}

fn join(above: usize) -> Result<ProgramWatch, String> {
    let text = |errno: rustix::io::Errno| format!("the pager process cannot start: {errno}");
    let pid = PROGRAM.load(Ordering::Acquire);
    let program = Program::new(pid).map_err(text)?;
    let place = ProgramPlace {
        above: above as u8,
        pid: pid as u32,
    };
    let args = START_ARGS
        .lock()
        .take()
        .ok_or("the pager process has no args")?;
    let child = args.gate.as_ref().map(ForkGate::child);
    let joined = (args.join)(args.gate, place);
    if let (Err(_), Some(child)) = (&joined, child)
        && !program.has_ended()
    {
        // While the domain is the child's: its parent takes one whose domain has gone for a child that has run.
        process_pager::signal_parent(child, ForkOutcome::Refused);
    }
    let connection = joined?;
    // Steps that need rights come before these are dropped.
    let realtime = threads::set_rt_priority(program.pid());
    let is_prepared = process_pager::handlers_need_rights();
    if realtime && !is_prepared {
        threads::prepare_handlers()?;
    }
    // Last: a failure from here on kills a program whose fork or exec any other one refuses.
    let lifeline = match &connection {
        Some(connection) => Some(Lifeline::tie(program.pid(), connection).map_err(text)?),
        None => None,
    };
    Ok(ProgramWatch {
        program,
        connection: connection.map(Connection::into_fd),
        lifeline,
        handlers: if realtime || is_prepared {
            HandlerState::Prepared
        } else {
            HandlerState::None
        },
        realtime,
    })
}

/// The events that the pager process's first thread waits for.
struct ProgramWatch {
    program: Program,
    connection: Option<std::os::fd::OwnedFd>,
    lifeline: Option<Lifeline>,
    handlers: HandlerState,
    /// The calling thread has the class of those that read faults, which cannot be had later.
    realtime: bool,
}

/// The state of the threads that read faults.
#[derive(PartialEq)]
enum HandlerState {
    None,
    Prepared,
    Run,
}

impl ProgramWatch {
    fn start_handlers(&mut self) {
        let prepared = match self.handlers {
            HandlerState::None => threads::prepare_handlers(),
            HandlerState::Prepared | HandlerState::Run => Ok(()),
        };
        if let Err(why) = prepared.and_then(|()| threads::start_handlers()) {
            end_program(&why);
        }
        self.handlers = HandlerState::Run;
    }

    fn run(mut self) -> ! {
        threads::trim_stack();
        let entry = |fd: RawFd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let connection = self.connection.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let first_fault = process_pager::userfault().filter(|_| self.handlers != HandlerState::Run);
        let first_fault = first_fault.map_or(-1, |fd| fd.as_raw_fd());
        let mut fds = [
            entry(self.program.pidfd().as_raw_fd()),
            entry(connection),
            entry(first_fault),
        ];
        loop {
            let at = fds.as_mut_ptr() as usize;
            let limit = CHECK_INTERVAL.as_millis() as usize;
            // SAFETY: three entries that live through the call.
            let answer = unsafe { syscall3(libc::SYS_poll, at, fds.len(), limit) };
            if is_error(answer) && answer != error(libc::EINTR) {
                end_program("a filter of the program's refuses `poll`");
            }
            self.exit_if_over();
            if fds[1].revents != 0 {
                // The kernel has killed the program with the connection's end.
                kill_program();
            }
            if fds[2].revents != 0 {
                fds[2].fd = -1;
                self.start_handlers();
            }
        }
    }

    /// Ends the pager process where the program has ended, or has begun another image.
    fn exit_if_over(&self) {
        if self.program.has_ended() {
            exit();
        }
        if self.program.has_replaced_its_image() {
            if let Some(lifeline) = &self.lifeline {
                lifeline.cut();
            }
            exit();
        }
    }
}

/// Ends the pager process.
fn exit() -> ! {
    crate::init::exit_group(0)
}

/// Ends the program at once, by a signal that it cannot catch, and the pager process with it.
pub fn kill_program() -> ! {
    if is_pager() {
        // The lifeline: the end of the pager process kills the program.
        exit();
    }
    raw_syscall::kill_self()
}
