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

/// Where the port goes: past what programs number by hand, within what select(2) counts,
/// and low enough not to make a large descriptor table.
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

/// The reason that it does not run.
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

/// C strings, and the null-ended array exec wants.
struct Strings {
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Self { strings, pointers }
    }

    /// In the program, whose number is `to`: names it where systemd named `run`'s first process.
    fn rename_process(&mut self, from: Pid, to: Pid) {
        for (string, pointer) in self.strings.iter_mut().zip(&mut self.pointers) {
            let names = |variable: &&&[u8]| {
                let value = string.as_bytes().strip_prefix(**variable);
                value.is_some_and(|value| value == from.to_string().as_bytes())
            };
            if let Some(variable) = OF_PROCESS.iter().find(names)
                && let Ok(renamed) = CString::new([variable, to.to_string().as_bytes()].concat())
            {
                *pointer = renamed.as_ptr();
                *string = renamed;
            }
        }
    }
}

/// Variables whose value is the process that systemd started: one with another number takes no sockets and sends no
/// keep-alives.
const OF_PROCESS: [&[u8]; 3] = [b"LISTEN_PID=", b"WATCHDOG_PID=", b"SYSTEMD_EXEC_PID="];

/// The same as a number that is not used again, which the program cannot be given.
const OF_PIDFD: &str = "LISTEN_PIDFDID";

/// Starts the program under the supervisor, as a child of this process.
pub fn spawn(
    spec: &RunSpec,
    supervisor: &Supervisor,
    inherited: &InheritedMask,
    held: Option<&ReservationGuard>,
) -> Result<Spawned, SpawnError> {
    let port = rustix::io::dup(supervisor.door()).map_err(own("duplicate the port"))?;
    let port = move_up(port)?;
    let sockets = supervisor
        .environment(port.as_raw_fd())
        .map_err(own("name the port"))?;
    let mut by_filter = environment(spec, Supervisor::filter_environment());
    let mut by_sockets = environment(spec, sockets);
    let arguments = Strings::new(spec.program.arguments.clone());
    let shell = shell_arguments(&spec.program);
    let (ours, childs) = seqpacket::pair().map_err(own("make a socket"))?;
    let (front, us) = (getppid(), getpid());
    // SAFETY: this process has one thread, so that its child may do what it does.
    match unsafe { libc::fork() } {
        -1 => Err(SpawnError::Own(
            "fork",
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN),
        )),
        0 => {
            let path = spec.program.path.as_ptr();
            let environment = match prepare(us, childs.as_fd(), inherited, held) {
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
                tell(childs.as_fd(), *libc::__errno_location());
                libc::_exit(127)
            }
        }
        child => {
            drop(childs);
            let pid = Pid::from_raw(child).ok_or(SpawnError::Own("fork", Errno::CHILD))?;
            started(pid, &ours)
        }
    }
}

/// In the child. The parent's death is its own, and direct I/O is noticed from now on. Returns
/// true if there is a filter.
fn prepare(
    parent: Pid,
    to: BorrowedFd<'_>,
    inherited: &InheritedMask,
    held: Option<&ReservationGuard>,
) -> bool {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != Some(parent) {
        // SAFETY: the supervisor died before it could be waited for; so ends this.
        unsafe { libc::_exit(125) };
    }
    if let Some(Err(errno)) = held.map(ReservationGuard::enter) {
        tell(to, RESERVED | errno.raw_os_error());
        // SAFETY: no program was started.
        unsafe { libc::_exit(125) };
    }
    // Its threads and their pagers: each wait for a page ends with a wake-up, which takes a processor from threads with the
    // kernel's own, longer slice.
    let _ = sched_class::set_slice(sched_class::PROGRAM_SLICE);
    let filter = seccomp::install();
    match &filter {
        Ok(listener) => {
            let fds = [listener.as_fd()];
            let sent = seqpacket::send(to, &0i32.to_ne_bytes(), &fds, SendFlags::empty());
            if let Err(errno) = sent {
                tell(to, UNSENT | errno.raw_os_error());
                // SAFETY: no program was started.
                unsafe { libc::_exit(125) };
            }
        }
        Err(errno) => tell(to, errno.raw_os_error()),
    }
    inherited.restore();
    filter.is_ok()
}

fn tell(to: BorrowedFd<'_>, errno: i32) {
    let _ = seqpacket::send(to, &errno.to_ne_bytes(), &[], SendFlags::empty());
}

/// In the parent: reads two messages. The first tells if there is a filter; the second has
/// exec's error, or is the end of the socket, which exec closes.
fn started(pid: Pid, from: &OwnedFd) -> Result<Spawned, SpawnError> {
    let receive =
        || seqpacket::receive(from, RecvFlags::empty()).map_err(own("hear from the new process"));
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

/// The port at its number, open across exec.
fn move_up(port: OwnedFd) -> Result<OwnedFd, SpawnError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(1 << 20);
    let at = PORT_NUMBER.min(limit.saturating_sub(8) as i32).max(3);
    use rustix::fd::FromRawFd;
    // SAFETY: duplicates a descriptor, to the first free number from there.
    match unsafe { libc::fcntl(port.as_raw_fd(), libc::F_DUPFD, at) } {
        // SAFETY: just made, ours alone.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(SpawnError::Own(
            "duplicate the port: raise `ulimit -n`",
            Errno::MFILE,
        )),
    }
}

/// This process's environment, with the variables that lead the program's pager here and no
/// others that lead elsewhere. Strings that are no variables pass as they are.
fn environment(spec: &RunSpec, ours: Vec<(&str, OsString)>) -> Strings {
    let replaced = |line: &CStr| {
        let name = line.to_bytes().split(|byte| *byte == b'=').next();
        let mut variables = ["LD_PRELOAD", OF_PIDFD]
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
    Strings::new(lines)
}

/// The strings of the environment: [`std::env::vars_os`] passes over those that are no variables.
fn inherited_environment() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: strings of the C library's, and null behind the last; this process changes none of them.
    unsafe {
        let strings = (0..)
            .map(|n| *environ.add(n))
            .take_while(|at| !at.is_null());
        strings.map(|at| CStr::from_ptr(at).to_owned()).collect()
    }
}

/// How a file of no known kind is run, as execvp does.
fn shell_arguments(program: &Program) -> Strings {
    let rest = program.arguments.iter().skip(1).cloned();
    Strings::new(
        [c"/bin/sh".to_owned(), program.path.clone()]
            .into_iter()
            .chain(rest)
            .collect(),
    )
}
