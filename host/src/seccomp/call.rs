//! The call by which a process of a tree requests a connection to its supervisor.
//!
//! Without the filter the call is an error ([`CALL`]). Under it the supervisor puts one end of a new
//! socket pair into the caller's descriptor table, and the call returns that descriptor. No process
//! outside of the tree can reach the supervisor by this call, and so keep it busy; and it needs
//! neither a name to connect to nor a descriptor in the program's table.

use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io;
use wired::syscall::{checked, syscall6};

/// `fcntl(-1, F_SETFL, TAG)`: an error of a bad descriptor where there is no filter, and a call
/// that the filter stops, since the tag contains O_DIRECT.
pub const CALL: (i64, [u64; 3]) = (libc::SYS_fcntl, [u64::MAX, libc::F_SETFL as u64, TAG]);

/// Distinguishes calls to the supervisor, and calls of pager processes, from the program's.
pub const TAG: u64 = wired::PAGER_TAG;
const _: () = assert!(CALL.1[2] & libc::O_DIRECT as u64 != 0);

/// Returns true if a stopped call is a request for a connection.
pub fn is_request(data: &libc::seccomp_data) -> bool {
    let [fd, command, tag] = CALL.1;
    let arguments = (data.args[0] as u32, data.args[1] as u32, data.args[2]);
    i64::from(data.nr) == CALL.0 && arguments == (fd as u32, command as u32, tag)
}

/// Bytes of the longest message that the call carries.
pub const CARRIED: usize = 23;

/// The message that a request carries in the rest of its arguments: its length, and its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedMessage([u8; CARRIED + 1]);

impl CarriedMessage {
    /// Packs a message; `None` where it is too long.
    pub fn new(message: &[u8]) -> Option<Self> {
        let mut carried = [0; CARRIED + 1];
        carried[1..]
            .get_mut(..message.len())?
            .copy_from_slice(message);
        carried[0] = message.len() as u8;
        Some(Self(carried))
    }

    /// The message of a stopped call.
    pub fn of(data: &libc::seccomp_data) -> Self {
        let mut carried = [0; CARRIED + 1];
        for (bytes, word) in carried.chunks_exact_mut(8).zip(&data.args[3..]) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Self(carried)
    }

    fn words(self) -> [u64; 3] {
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(self.0.chunks_exact(8)) {
            // The chunks are of this length.
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        words
    }

    /// The message's bytes: none in a request that carries none.
    pub fn as_slice(&self) -> &[u8] {
        self.0[1..].get(..self.0[0].into()).unwrap_or_default()
    }
}

/// Makes the call, and returns a connection to the supervisor whose filter this process is under. The
/// supervisor handles the message as the first one on that connection. A raw system call, for
/// constructors and fork's children.
pub fn request(message: CarriedMessage) -> io::Result<OwnedFd> {
    let (number, [fd, command, tag]) = CALL;
    let [first, second, third] = message.words();
    // SAFETY: the call has no effect on this process but the descriptor that it may return. Raw,
    // since nothing here may set errno in a thread without one.
    let made = unsafe {
        syscall6(
            number,
            [fd, command, tag, first, second, third].map(|word| word as usize),
        )
    };
    let made = checked(made)?;
    // SAFETY: a descriptor that the supervisor has just put here, for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_unpacked_as_it_was_packed() {
        for len in 0..=CARRIED {
            let message: Vec<u8> = (1..=len as u8).collect();
            let carried = CarriedMessage::new(&message).unwrap();
            // SAFETY: plain numbers.
            let mut data: libc::seccomp_data = unsafe { std::mem::zeroed() };
            data.args[3..].copy_from_slice(&carried.words());
            assert_eq!(CarriedMessage::of(&data).as_slice(), message);
        }
        assert!(CarriedMessage::new(&[0; CARRIED + 1]).is_none());
    }

    #[test]
    fn a_length_beyond_the_arguments_unpacks_to_an_empty_message() {
        // SAFETY: plain numbers.
        let mut data: libc::seccomp_data = unsafe { std::mem::zeroed() };
        data.args[3..].fill(u64::MAX);
        assert_eq!(CarriedMessage::of(&data).as_slice(), b"");
    }
}
