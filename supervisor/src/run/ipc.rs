//! Messages between the front process and the supervisor.

use host::seqpacket;
use rustix::fd::AsFd;
use rustix::io;
use rustix::net::{RecvFlags, SendFlags};

/// A signal that one of the two processes received, as the kernel reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    pub signal: i32,
    /// 0 or less: a process sent it; more: the kernel did, for example for the terminal.
    pub code: i32,
    pub sender: i32,
    /// The value sent with it (sigqueue).
    pub value: u64,
}

/// A message of either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the supervisor: send the program this signal.
    Signal(SignalInfo),
    /// To the front process: this signal stopped the program.
    Stopped(i32),
    /// To the front process: the tree has ended; the program's wait status.
    Ended(i32),
    /// To the front process: the program was not started; the exit status to return.
    Failed(i32),
}

impl Message {
    /// Sends it.
    pub fn send(self, to: impl AsFd) -> io::Result<()> {
        let words: [i64; 5] = match self {
            Self::Signal(a) => [
                1,
                a.signal.into(),
                a.code.into(),
                a.sender.into(),
                a.value as i64,
            ],
            Self::Stopped(signal) => [2, signal.into(), 0, 0, 0],
            Self::Ended(status) => [3, status.into(), 0, 0, 0],
            Self::Failed(status) => [4, status.into(), 0, 0, 0],
        };
        let mut bytes = [0; 40];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        seqpacket::send(to, &bytes, &[], SendFlags::empty())
    }

    /// Receives the next message, if there is one; `Err` when the other process is gone.
    pub fn receive(from: impl AsFd) -> io::Result<Option<Self>> {
        let received = match seqpacket::receive(from, RecvFlags::DONTWAIT) {
            Err(io::Errno::AGAIN) => return Ok(None),
            other => other?,
        };
        let word = |i: usize| {
            let bytes = received.as_slice().get(i * 8..i * 8 + 8)?;
            Some(i64::from_ne_bytes(bytes.try_into().ok()?))
        };
        let number = |i: usize| word(i).unwrap_or(0) as i32;
        match word(0) {
            Some(1) => Ok(Some(Self::Signal(SignalInfo {
                signal: number(1),
                code: number(2),
                sender: number(3),
                value: word(4).unwrap_or(0) as u64,
            }))),
            Some(2) => Ok(Some(Self::Stopped(number(1)))),
            Some(3) => Ok(Some(Self::Ended(number(1)))),
            Some(4) => Ok(Some(Self::Failed(number(1)))),
            _ => Err(io::Errno::PIPE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_and_the_end_is_an_error() {
        let (a, b) = seqpacket::pair().unwrap();
        let signal = SignalInfo {
            signal: 15,
            code: -1,
            sender: 42,
            value: u64::MAX - 3,
        };
        for message in [
            Message::Signal(signal),
            Message::Stopped(20),
            Message::Ended(0x8b),
            Message::Failed(125),
        ] {
            message.send(&a).unwrap();
            assert_eq!(Message::receive(&b), Ok(Some(message)));
        }
        assert_eq!(Message::receive(&b), Ok(None));
        drop(a);
        assert!(Message::receive(&b).is_err());
    }
}
