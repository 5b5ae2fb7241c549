//! Distinguishes signals to the program's process group from signals to the front process alone. The former reach the
//! program without help and must not be forwarded; the latter must. The front process receives both alike.
//!
//! The supervisor has left the group (`start.rs`). So another process is in it, the *group witness*, which receives
//! the group's signals, and reports them when the supervisor requests it. Its name does not match the pattern `selfpage`,
//! so a `pkill` by that pattern reaches front process and supervisor only, and does not count as a signal to the group.

use super::front_process::open_descriptors;
use super::ipc::{Message, SignalInfo};
use super::signals::Signals;
use host::process_tree::ProcStat;
use host::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::time::{Duration, Instant};

/// Most time between the arrivals of one signal to the group at the front process and at the witness, while the front
/// process is not stopped.
const MATCH_WINDOW: Duration = Duration::from_millis(200);

/// Longest wait for a report of the witness, which does no other work.
const REPORT_TIMEOUT: Duration = Duration::from_millis(200);

/// The supervisor's connection to the witness.
pub struct GroupWitness {
    socket: OwnedFd,
    /// The number of the last request.
    last_request: u32,
}

impl GroupWitness {
    /// Starts the witness, a child of the front process, with all signals blocked.
    pub fn start() -> io::Result<(Self, Pid)> {
        let (ours, theirs) = seqpacket::pair()?;
        let front = getpid();
        // SAFETY: this process has one thread, so the child may run any code.
        match unsafe { libc::fork() } {
            -1 => Err(host::last_errno()),
            0 => {
                drop(ours);
                serve(&theirs, front);
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) }
            }
            witness => {
                let socket = ours;
                let witness = Pid::from_raw(witness).ok_or(io::Errno::CHILD)?;
                let last_request = 0;
                Ok((
                    Self {
                        socket,
                        last_request,
                    },
                    witness,
                ))
            }
        }
    }

    /// Returns true if the group received a signal that the front process received; each arrival counts once.
    pub fn has_received(&mut self, signal: SignalInfo) -> bool {
        self.request_report(signal) || {
            // The kernel may still be delivering the signal to the group.
            std::thread::sleep(Duration::from_millis(1));
            self.request_report(signal)
        }
    }

    fn request_report(&mut self, signal: SignalInfo) -> bool {
        let limit = Timespec::try_from(REPORT_TIMEOUT).ok();
        self.last_request = self.last_request.wrapping_add(1);
        let request = Message::HasGroupReceived(self.last_request, signal);
        let mut is_connected = request.send(&self.socket).is_ok();
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        while is_connected && poll(&mut ready, limit.as_ref()).is_ok_and(|ready| ready > 0) {
            match Message::receive(&self.socket) {
                Ok(Some(Message::GroupHasReceived(number, found)))
                    if number == self.last_request =>
                {
                    return found;
                }
                // A late report of an earlier request, or no message yet.
                Ok(_) => {}
                Err(_) => is_connected = false,
            }
        }
        false
    }
}

/// The witness's loop: reports the signals that it has received lately, until the supervisor or the front process ends.
/// It reads signals as they arrive, since a second signal of a pending number is lost.
fn serve(supervisor: &OwnedFd, front: Pid) {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(signals) = Signals::open() else { return };
    if getppid() != Some(front) {
        return;
    }
    hide_name();
    close_all_but([supervisor.as_raw_fd(), signals.raw_fd()]);
    let mut received = Received::default();
    loop {
        let mut ready = [
            PollFd::new(supervisor, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
        ];
        let limit = received.expiry().and_then(|it| Timespec::try_from(it).ok());
        let _ = poll(&mut ready, limit.as_ref());
        received.expire(Instant::now(), || {
            ProcStat::of(front).is_some_and(|stat| stat.is_stopped_or_dead())
        });
        while let Some(signal) = signals.next() {
            received.signals.push((Instant::now(), signal));
        }
        let replied = match Message::receive(supervisor) {
            Ok(Some(Message::HasGroupReceived(number, signal))) => {
                Message::GroupHasReceived(number, received.take(signal)).send(supervisor)
            }
            Ok(_) => Ok(()),
            Err(closed) => Err(closed),
        };
        if replied.is_err() {
            return;
        }
    }
}

/// The signals that the witness has received lately. The front process receives the same ones, but none while it is
/// stopped (a job's ^Z): ages count again from its continuation.
#[derive(Default)]
struct Received {
    signals: Vec<(Instant, SignalInfo)>,
    /// The front process was stopped when a signal would have expired.
    is_front_stopped: bool,
}

impl Received {
    /// The time until the first signal expires; `None` while no signal can.
    fn expiry(&self) -> Option<Duration> {
        let oldest = self.signals.iter().map(|(when, _)| *when).min()?;
        (!self.is_front_stopped).then(|| MATCH_WINDOW.saturating_sub(oldest.elapsed()))
    }

    /// Drops signals that are older than the window.
    fn expire(&mut self, now: Instant, is_front_stopped: impl Fn() -> bool) {
        let is_old = |when: Instant| now.saturating_duration_since(when) >= MATCH_WINDOW;
        if !self.signals.iter().any(|(when, _)| is_old(*when)) {
            return;
        }
        let was_stopped = std::mem::replace(&mut self.is_front_stopped, is_front_stopped());
        if was_stopped || self.is_front_stopped {
            self.signals.iter_mut().for_each(|(when, _)| *when = now);
        }
        self.signals.retain(|(when, _)| !is_old(*when));
    }

    /// Removes a signal. Returns true if it was received.
    fn take(&mut self, signal: SignalInfo) -> bool {
        let same = |(_, group): &(Instant, SignalInfo)| {
            (group.signal, group.sender, group.code) == (signal.signal, signal.sender, signal.code)
        };
        let found = self.signals.iter().position(same);
        found.map(|at| self.signals.remove(at)).is_some()
    }
}

/// Closes all other descriptors, so that readers of the program's output see end of file when the program closes it.
fn close_all_but(kept: [i32; 2]) {
    for fd in open_descriptors() {
        if !kept.contains(&fd) {
            // SAFETY: no code of this process uses it any more.
            unsafe { libc::close(fd) };
        }
    }
}

/// Replaces the name inherited from the front process, and clears the command line.
fn hide_name() {
    let _ = rustix::thread::set_name(c"group-signals");
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else {
        return;
    };
    // Behind the name, which may have blanks: the fields from the third on.
    let fields = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_ascii_whitespace());
    /// The field `arg_start` is the 48th.
    const ARGUMENTS: usize = 48 - 3;
    let mut ends = fields
        .into_iter()
        .flatten()
        .skip(ARGUMENTS)
        .map_while(|field| field.parse::<usize>().ok());
    if let (Some(start), Some(end)) = (ends.next(), ends.next()) {
        // SAFETY: the command line's own memory, of which this process reads nothing more.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, end.saturating_sub(start)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: SignalInfo = SignalInfo {
        signal: libc::SIGTERM,
        code: 0,
        sender: 42,
        value: 0,
    };

    #[test]
    fn a_signal_expires_while_the_front_process_runs_alone() {
        let start = Instant::now();
        let mut received = Received::default();
        received.signals.push((start, SENT));
        // The front process is stopped at two checks; then it continues, and may read its signals.
        received.expire(start + MATCH_WINDOW, || true);
        assert_eq!(received.expiry(), None);
        received.expire(start + MATCH_WINDOW * 5, || true);
        received.expire(start + MATCH_WINDOW * 9, || false);
        assert_eq!(received.signals.len(), 1);
        assert!(received.expiry().is_some());
        received.expire(start + MATCH_WINDOW * 10, || false);
        assert!(!received.take(SENT));
    }

    #[test]
    fn a_signal_is_taken_once() {
        let mut received = Received::default();
        received.signals.push((Instant::now(), SENT));
        assert!(received.take(SENT));
        assert!(!received.take(SENT));
    }

    /// A witness that replies to each request by `reply`.
    fn replied_by(reply: impl Fn(&OwnedFd, u32, SignalInfo) + Send + 'static) -> GroupWitness {
        let (socket, witness) = seqpacket::pair().unwrap();
        std::thread::spawn(move || {
            while let Ok(request) = Message::receive(&witness) {
                match request {
                    Some(Message::HasGroupReceived(number, signal)) => {
                        reply(&witness, number, signal)
                    }
                    _ => std::thread::yield_now(),
                }
            }
        });
        let last_request = 0;
        GroupWitness {
            socket,
            last_request,
        }
    }

    #[test]
    fn a_report_counts_for_its_request_alone() {
        let mut group = replied_by(|witness, number, signal| {
            // A late report of the request before.
            let late = Message::GroupHasReceived(number - 1, signal != SENT);
            late.send(witness).unwrap();
            let report = Message::GroupHasReceived(number, signal == SENT);
            report.send(witness).unwrap();
        });
        let other = SignalInfo { sender: 43, ..SENT };
        assert!(group.has_received(SENT));
        assert!(!group.has_received(other));
        assert!(group.has_received(SENT));
    }
}
