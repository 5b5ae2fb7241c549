//! Starts the program: the steps between fork and exec.

use super::RunSpec;
use super::program::Program;
use super::signals::InheritedMask;
use crate::Supervisor;
use host::cpu_reservation::ReservationGuard;
use host::{seccomp, seqpacket};
use link::client;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use wired::sched_class;

/// The port's descriptor number: above the numbers that programs choose by hand, below the limit of
/// select(2), and low enough not to make a large descriptor table.
const PORT_NUMBER: i32 = 1000;

/// Set in the first message where the reservation could not be entered.
const RESERVED: i32 = 1 << 16;

/// Set in the first message where the filter's listener could not be sent.
const UNSENT: i32 = 1 << 17;

/// A running program.
pub struct Spawned {
    pub pid: Pid,
    /// The filter's listener, or why there is no filter.
    pub listener: Result<OwnedFd, Errno>,
}

/// Why the program does not run.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// exec failed.
    #[error("exec: {0}")]
    Exec(Errno),
    /// A step before exec failed.
    #[error("cannot {0}: {1}")]
    Own(&'static str, Errno),
}

fn own(what: &'static str) -> impl Fn(Errno) -> SpawnError {
    move |errno| SpawnError::Own(what, errno)
}

/// C strings, and the null-terminated array of pointers that exec takes.
struct CStringArray {
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStringArray {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Self { strings, pointers }
    }

    /// In the child that becomes the program: replaces the number of the front process by the child's in systemd's variables.
    fn rename_process(&mut self, from: Pid, to: Pid) {
        for (string, pointer) in self.strings.iter_mut().zip(&mut self.pointers) {
            let names = |variable: &&&[u8]| {
                let value = string.as_bytes().strip_prefix(**variable);
                value.is_some_and(|value| value == from.to_string().as_bytes())
            };
            if let Some(variable) = PROCESS_VARIABLES.iter().find(names)
                && let Ok(renamed) = CString::new([variable, to.to_string().as_bytes()].concat())
            {
                *pointer = renamed.as_ptr();
                *string = renamed;
            }
        }
    }
}

/// Variables whose value is the number of the process that systemd started: a process with another number takes no
/// sockets and sends no keep-alives.
const PROCESS_VARIABLES: [&[u8]; 3] = [b"LISTEN_PID=", b"WATCHDOG_PID=", b"SYSTEMD_EXEC_PID="];

/// A variable that identifies the process by a number that is never used again: it is removed, since the program has another.
const PIDFD_VARIABLE: &str = "LISTEN_PIDFDID";

/// Starts the program under the supervisor, as a child of this process.
pub fn spawn(
    spec: &RunSpec,
    supervisor: &Supervisor,
    inherited: &InheritedMask,
    held: Option<&ReservationGuard>,
) -> Result<Spawned, SpawnError> {
    let port = rustix::io::dup(supervisor.inherited_port()).map_err(own("duplicate the port"))?;
    let port = duplicate_high(port)?;
    let sockets = supervisor
        .environment(port.as_raw_fd())
        .map_err(own("name the port"))?;
    let mut by_filter = environment(spec, Supervisor::filter_environment());
    let mut by_sockets = environment(spec, sockets);
    let arguments = CStringArray::new(spec.program.arguments.clone());
    let shell = shell_arguments(&spec.program);
    let (ours, child_end) = seqpacket::pair().map_err(own("make a socket"))?;
    let (front, us) = (getppid(), getpid());
    // SAFETY: this process has one thread, so that its child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(SpawnError::Own(
            "fork",
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN),
        )),
        0 => {
            let path = spec.program.path.as_ptr();
            let environment = match prepare(us, child_end.as_fd(), inherited, held) {
                true => {
                    drop(port);
                    &mut by_filter
                }
                false => &mut by_sockets,
            };
            if let Some(front) = front {
                environment.rename_process(front, getpid());
            }
            // SAFETY: null-ended arrays of C strings, alive until exec.
            unsafe {
                libc::execve(
                    path,
                    arguments.pointers.as_ptr(),
                    environment.pointers.as_ptr(),
                );
                if *libc::__errno_location() == libc::ENOEXEC {
                    libc::execve(
                        c"/bin/sh".as_ptr(),
                        shell.pointers.as_ptr(),
                        environment.pointers.as_ptr(),
                    );
                }
                send_errno(child_end.as_fd(), *libc::__errno_location());
                libc::_exit(127)
            }
        }
        child => {
            drop(child_end);
            let pid = Pid::from_raw(child).ok_or(SpawnError::Own("fork", Errno::CHILD))?;
            await_exec(pid, &ours)
        }
    }
}

/// In the child: has the kernel kill it with its parent, enters the reservation, and installs the filter. Returns
/// true if there is a filter.
fn prepare(
    parent: Pid,
    to: BorrowedFd<'_>,
    inherited: &InheritedMask,
    held: Option<&ReservationGuard>,
) -> bool {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != Some(parent) {
        // SAFETY: the supervisor died before the call above; this child ends, too.
        unsafe { libc::_exit(125) };
    }
    if let Some(Err(errno)) = held.map(ReservationGuard::enter) {
        send_errno(to, RESERVED | errno.raw_os_error());
        // SAFETY: no program was started.
        unsafe { libc::_exit(125) };
    }
    // For the program's threads and their pagers: each wait for a page ends with a wake-up, which takes a processor from
    // threads with the kernel's longer default slice.
    let _ = sched_class::set_slice(sched_class::PROGRAM_SLICE);
    let filter = seccomp::install();
    match &filter {
        Ok(listener) => {
            let fds = [listener.as_fd()];
            let sent = seqpacket::send(to, &0i32.to_ne_bytes(), &fds, SendFlags::empty());
            if let Err(errno) = sent {
                send_errno(to, UNSENT | errno.raw_os_error());
                // SAFETY: no program was started.
                unsafe { libc::_exit(125) };
            }
        }
        Err(errno) => send_errno(to, errno.raw_os_error()),
    }
    inherited.restore();
    filter.is_ok()
}

fn send_errno(to: BorrowedFd<'_>, errno: i32) {
    let _ = seqpacket::send(to, &errno.to_ne_bytes(), &[], SendFlags::empty());
}

/// In the parent: receives two messages. The first has the filter's listener or error; the second has
/// exec's error, or is the end of the socket, which exec closes.
fn await_exec(pid: Pid, from: &OwnedFd) -> Result<Spawned, SpawnError> {
    let receive = || {
        seqpacket::receive(from, RecvFlags::empty()).map_err(own("receive from the new process"))
    };
    let mut first = receive()?;
    let listener = match (number(first.as_slice()), first.fds[0].take()) {
        (Some(number), _) if number & RESERVED != 0 => {
            let errno = errno_of(number & !RESERVED);
            return Err(SpawnError::Own(
                "reserve processor time for the program",
                errno,
            ));
        }
        (Some(number), _) if number & UNSENT != 0 => {
            return Err(SpawnError::Own(
                "pass on the notifications of direct I/O (raise `ulimit -n`)",
                errno_of(number & !UNSENT),
            ));
        }
        (Some(0), Some(listener)) => Ok(listener),
        (Some(errno), _) => Err(errno_of(errno)),
        (None, _) => {
            return Err(SpawnError::Own(
                "start the program: it was killed",
                Errno::CHILD,
            ));
        }
    };
    match number(receive()?.as_slice()) {
        None => Ok(Spawned { pid, listener }),
        Some(errno) => {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            Err(SpawnError::Exec(errno_of(errno)))
        }
    }
}

fn number(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.try_into().ok()?))
}

fn errno_of(number: i32) -> Errno {
    Errno::from_raw_os_error(number)
}

/// Duplicates the port to [`PORT_NUMBER`] or above, without close-on-exec.
fn duplicate_high(port: OwnedFd) -> Result<OwnedFd, SpawnError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(1 << 20);
    let at = PORT_NUMBER.min(limit.saturating_sub(8) as i32).max(3);
    use rustix::fd::FromRawFd;
    // SAFETY: duplicates a descriptor to the first free number from `at` on.
    match unsafe { libc::fcntl(port.as_raw_fd(), libc::F_DUPFD, at) } {
        // SAFETY: just made, ours alone.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(SpawnError::Own(
            "duplicate the port: raise `ulimit -n`",
            Errno::MFILE,
        )),
    }
}

/// This process's environment, with the variables by which the program's pager finds this supervisor, and without
/// those of another supervisor. Strings that are not variables pass unchanged.
fn environment(spec: &RunSpec, ours: Vec<(&str, OsString)>) -> CStringArray {
    let replaced = |line: &CStr| {
        let name = line.to_bytes().split(|byte| *byte == b'=').next();
        let mut variables = ["LD_PRELOAD", PIDFD_VARIABLE]
            .into_iter()
            .chain(client::VARIABLES);
        variables.any(|variable| name == Some(variable.as_bytes()))
    };
    let mut lines: Vec<CString> = inherited_environment();
    lines.retain(|line| !replaced(line));
    let own = [("LD_PRELOAD", spec.preload.clone())]
        .into_iter()
        .chain(ours);
    let line = |(name, value): (&str, OsString)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
    };
    lines.extend(own.filter_map(line));
    CStringArray::new(lines)
}

/// The strings of the environment; [`std::env::vars_os`] omits those that are not variables.
fn inherited_environment() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library's null-terminated array of strings, which this process does not change.
    unsafe {
        let strings = (0..)
            .map(|n| *environ.add(n))
            .take_while(|at| !at.is_null());
        strings.map(|at| CStr::from_ptr(at).to_owned()).collect()
    }
}

/// The arguments to run a file of an unknown kind by the shell, as execvp does.
fn shell_arguments(program: &Program) -> CStringArray {
    let rest = program.arguments.iter().skip(1).cloned();
    CStringArray::new(
        [c"/bin/sh".to_owned(), program.path.clone()]
            .into_iter()
            .chain(rest)
            .collect(),
    )
}
