//! The socket of the membership: in a cluster each datagram is signed by a member.
//!
//! Rule: a datagram that no member has signed is dropped before anything is read in it. In the clear (`--insecure`)
//! any is read. One with a key that this host does not know may be of a member that has just joined: then the other
//! members are asked for their lists, or it would be taken for gone until these come by themselves, a minute later.

use remote_keys::{Keyring, sharing, signed_datagram};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// The longest datagram: it fits one packet of an Ethernet.
const DATAGRAM: usize = 1400;

/// How often members are asked for their lists, whatever unknown hosts send.
const LEAST_PERIOD: Duration = Duration::from_secs(5);

/// A socket for datagrams of members.
pub struct MembershipSocket {
    socket: UdpSocket,
    keys: Option<Arc<Keyring>>,
    /// When members were asked for their lists last, and whether they are being asked.
    asked: Option<Instant>,
    is_asking: Arc<AtomicBool>,
}

impl MembershipSocket {
    /// A socket for the members of a cluster; without a keyring for any host.
    pub fn new(socket: UdpSocket, keys: Option<Arc<Keyring>>) -> Self {
        Self {
            socket,
            keys,
            asked: None,
            is_asking: Arc::default(),
        }
    }

    /// The longest message.
    pub fn most(&self) -> usize {
        match self.keys {
            Some(_) => DATAGRAM - signed_datagram::SIGNED_OVERHEAD,
            None => DATAGRAM,
        }
    }

    /// Waits for a message.
    pub async fn receive(&mut self) -> Vec<u8> {
        let mut datagram = [0; DATAGRAM];
        loop {
            // An error is a port that an earlier datagram did not reach, as the kernel reports it.
            let Ok((length, _)) = self.socket.recv_from(&mut datagram).await else {
                continue;
            };
            let datagram = &datagram[..length];
            let message = match &self.keys {
                Some(keys) => signed_datagram::verify(keys, datagram),
                None => Some(datagram),
            };
            if let Some(message) = message {
                return message.to_vec();
            }
            self.on_unread(datagram);
        }
    }

    /// A datagram was not read.
    fn on_unread(&mut self, datagram: &[u8]) {
        let Some(keys) = &self.keys else {
            return;
        };
        let is_early = |at: Instant| at.elapsed() < LEAST_PERIOD;
        if self.asked.is_some_and(is_early) || !signed_datagram::is_of_unknown_key(keys, datagram) {
            return;
        }
        self.asked = Some(Instant::now());
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (keys, is_asking) = (Arc::clone(keys), Arc::clone(&self.is_asking));
        // It blocks for seconds for each member that does not answer.
        spawn_blocking(move || {
            for (_, why) in sharing::share_with_all(&keys).unwrap_or_default() {
                tracing::debug!("a member did not share its list of members: {why}");
            }
            is_asking.store(false, Ordering::Relaxed);
        });
    }

    /// Sends a message, if the kernel takes it now: one that is lost is one that the protocol repeats.
    pub fn send(&self, message: &[u8], to: SocketAddr) -> io::Result<usize> {
        let Some(keys) = &self.keys else {
            return self.socket.try_send_to(message, to);
        };
        let signed = signed_datagram::sign(keys.key(), message);
        let signed = signed.ok_or_else(|| io::Error::other("the host's key signs nothing"))?;
        self.socket.try_send_to(&signed, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_signed_message_is_received_after_a_forged_one_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let keyring = Keyring::open(folder.path()).unwrap();
        keyring.set_own("host", None).unwrap();
        let keyring = Some(Arc::new(keyring));
        let runtime = crate::test_member::runtime();
        runtime.block_on(async {
            let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
            let socket = bind().await.unwrap();
            let to = socket.local_addr().unwrap();
            let mut host = MembershipSocket::new(socket, keyring.clone());
            for (keys, message) in [(None, b"forged"), (keyring, b"signed")] {
                let sender = MembershipSocket::new(bind().await.unwrap(), keys);
                sender.socket.writable().await.unwrap();
                sender.send(message, to).unwrap();
            }
            assert_eq!(host.receive().await, b"signed");
        });
    }
}
