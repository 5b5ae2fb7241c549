//! What is sent to the program's process group. It reaches the program by itself, so it is not to be forwarded as what is
//! sent to the front process alone is; that process's own signals do not show the difference.
//!
//! The supervisor has left the group (`start.rs`). So one more process is in it, the *group witness*, which receives
//! what the group does, and reports it when the supervisor requests it. Patterns that match `selfpage` do not match it:
//! what they send to front process and supervisor is not sent to the group.

use super::front_process::open_descriptors;
use super::ipc::{Message, SignalInfo};
use super::signals::Signals;
use host::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::time::{Duration, Instant};

/// Most time between the arrivals at front process and witness of one signal sent to their group.
const MATCH_WINDOW: Duration = Duration::from_millis(200);

/// Longest wait for the witness, which does nothing else.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// The witness, as the supervisor knows it.
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
        // SAFETY: this process has one thread, so the child may go on as it likes.
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

    /// Returns true if the group received a signal that the front process received; once for each time.
    pub fn has_received(&mut self, signal: SignalInfo) -> bool {
        self.request_report(signal) || {
            // The kernel may still be delivering it to the group.
            std::thread::sleep(Duration::from_millis(1));
            self.request_report(signal)
        }
    }

    fn request_report(&mut self, signal: SignalInfo) -> bool {
        let limit = Timespec::try_from(ANSWER_TIMEOUT).ok();
        self.last_request = self.last_request.wrapping_add(1);
        let request = Message::IsOfGroup(self.last_request, signal);
        let mut is_connected = request.send(&self.socket).is_ok();
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        while is_connected && poll(&mut ready, limit.as_ref()).is_ok_and(|ready| ready > 0) {
            match Message::receive(&self.socket) {
                Ok(Some(Message::OfGroup(number, found))) if number == self.last_request => {
                    return found;
                }
                // An answer that came too late, or none yet.
                Ok(_) => {}
                Err(_) => is_connected = false,
            }
        }
        false
    }
}

/// The witness: answers from what it has received lately, until the supervisor or the front process ends.
/// It reads signals as they come: a second one of a number that waits is lost.
fn serve(supervisor: &OwnedFd, front: Pid) {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(signals) = Signals::open() else { return };
    if getppid() != Some(front) {
        return;
    }
    hide_name();
    close_all_but([supervisor.as_raw_fd(), signals.raw_fd()]);
    let mut received: Vec<(Instant, SignalInfo)> = Vec::new();
    loop {
        let mut ready = [
            PollFd::new(supervisor, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
        ];
        let _ = poll(&mut ready, None);
        received.retain(|(when, _)| when.elapsed() < MATCH_WINDOW);
        while let Some(signal) = signals.next() {
            received.push((Instant::now(), signal));
        }
        let answered = match Message::receive(supervisor) {
            Ok(Some(Message::IsOfGroup(number, signal))) => {
                let same = |(_, group): &(Instant, SignalInfo)| {
                    (group.signal, group.sender, group.code)
                        == (signal.signal, signal.sender, signal.code)
                };
                let found = received.iter().position(same);
                let found = found.map(|at| received.remove(at)).is_some();
                Message::OfGroup(number, found).send(supervisor)
            }
            Ok(_) => Ok(()),
            Err(gone) => Err(gone),
        };
        if answered.is_err() {
            return;
        }
    }
}

/// Readers of the program's output are to see its end of file, and not the witness's.
fn close_all_but(kept: [i32; 2]) {
    for fd in open_descriptors() {
        if !kept.contains(&fd) {
            // SAFETY: nothing in this process uses it any more.
            unsafe { libc::close(fd) };
        }
    }
}

/// Takes the name and the command line of the front process away.
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

    /// Has a witness answer each request so.
    fn answered(answer: impl Fn(&OwnedFd, u32, SignalInfo) + Send + 'static) -> GroupWitness {
        let (socket, witness) = seqpacket::pair().unwrap();
        std::thread::spawn(move || {
            while let Ok(request) = Message::receive(&witness) {
                match request {
                    Some(Message::IsOfGroup(number, signal)) => answer(&witness, number, signal),
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
    fn an_answer_counts_for_its_request_alone() {
        let mut group = answered(|witness, number, signal| {
            // Of the request before, which came too late.
            let late = Message::OfGroup(number - 1, signal != SENT);
            late.send(witness).unwrap();
            let answer = Message::OfGroup(number, signal == SENT);
            answer.send(witness).unwrap();
        });
        let other = SignalInfo { sender: 43, ..SENT };
        assert!(group.has_received(SENT));
        assert!(!group.has_received(other));
        assert!(group.has_received(SENT));
    }
}
