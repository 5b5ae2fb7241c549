//! Messages between the front process, the supervisor and the group witness.

use host::seqpacket;
use link::handshake::Message as _;
use rustix::fd::AsFd;
use rustix::io;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};

/// A signal that one of the processes received, as the kernel reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalInfo {
    pub signal: i32,
    /// 0 or less: a process sent it; more: the kernel did, for example for the terminal.
    pub code: i32,
    pub sender: i32,
    /// The value sent with it (sigqueue).
    pub value: u64,
}

/// A message of either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the supervisor: the sender has received this signal.
    Signal(SignalInfo),
    /// To the group witness: requests a report of whether the group has received this signal. With the request's number.
    HasGroupReceived(u32, SignalInfo),
    /// The report of the request with this number.
    GroupHasReceived(u32, bool),
    /// To the front process: the program runs.
    Started,
    /// To the front process: the tree has ended; the program's wait status.
    Ended(i32),
    /// To the front process: the program was not started; the exit status to return.
    Failed(i32),
}

impl link::handshake::Message<'_> for Message {
    const FAMILY: u32 = 4;
}

impl Message {
    /// Sends the message.
    pub fn send(self, to: impl AsFd) -> io::Result<()> {
        seqpacket::send(to, self.encode().as_slice(), &[], SendFlags::empty())
    }

    /// Receives the next message, if there is one; `Err` when the other process has closed its end.
    pub fn receive(from: impl AsFd) -> io::Result<Option<Self>> {
        match seqpacket::receive(from, RecvFlags::DONTWAIT) {
            Err(io::Errno::AGAIN) => Ok(None),
            received => Self::decode(received?.as_slice())
                .map(Some)
                .ok_or(io::Errno::PIPE),
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
            Message::HasGroupReceived(7, signal),
            Message::GroupHasReceived(7, true),
            Message::Started,
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
