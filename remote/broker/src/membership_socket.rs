//! The socket of the membership: in a cluster each datagram is signed by a member.
//!
//! Rule: a datagram that no member has signed is dropped before anything is read in it. In the clear (`--insecure`)
//! any is read. One that is signed by a key which this host does not know may be of a member that has just joined: then
//! other members are asked for their lists, or it would be taken for gone until these come by themselves, a minute later.
//! Any host can make a key, and name another host's address as its own: so few are asked, in turn, until one has the key.

use remote_keys::{Fingerprint, Keyring, sharing, signed_datagram};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// The longest datagram: it fits one packet of an Ethernet.
const DATAGRAM: usize = 1400;

/// How often members are asked for their lists, whatever unknown hosts send, and how many: a member that has joined has
/// shared its list with all that it could reach.
const LEAST_PERIOD: Duration = Duration::from_secs(5);
const MOST_ASKED: usize = 3;

/// A socket for datagrams of members.
pub struct MembershipSocket {
    socket: UdpSocket,
    keys: Option<Arc<Keyring>>,
    /// When members were asked for their lists last, and whether they are being asked.
    asked: Option<Instant>,
    is_asking: Arc<AtomicBool>,
    /// The place of the member that is asked next.
    turn: Arc<AtomicUsize>,
}

impl MembershipSocket {
    /// A socket for the members of a cluster; without a keyring for any host.
    pub fn new(socket: UdpSocket, keys: Option<Arc<Keyring>>) -> Self {
        Self {
            socket,
            keys,
            asked: None,
            is_asking: Arc::default(),
            turn: Arc::default(),
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
        if self.asked.is_some_and(is_early) {
            return;
        }
        let Some(unknown) = signed_datagram::unknown_signer(keys, datagram) else {
            return;
        };
        self.asked = Some(Instant::now());
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (keys, turn) = (Arc::clone(keys), Arc::clone(&self.turn));
        let is_asking = Arc::clone(&self.is_asking);
        // It blocks for seconds for each member that does not answer.
        spawn_blocking(move || {
            ask_for(&unknown, &keys, &turn);
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

/// Asks the members whose turn it is for their lists, until one has a key.
fn ask_for(unknown: &Fingerprint, keys: &Arc<Keyring>, turn: &AtomicUsize) {
    let others = sharing::others(keys).unwrap_or_default();
    for _ in 0..others.len().min(MOST_ASKED) {
        let at = turn.fetch_add(1, Ordering::Relaxed) % others.len();
        let (_, name, address) = &others[at];
        if let Err(why) = sharing::share_with(keys, address) {
            tracing::debug!("{name} ({address}) did not share its list of members: {why}");
        }
        if keys.is_member(unknown) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remote_keys::MemberList;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_signed_message_is_received_after_a_forged_one_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let keyring = Some(keyring(&folder, "host"));
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

    /// A keyring in a folder of its own, whose host is a member.
    fn keyring(folder: &tempfile::TempDir, name: &str) -> Arc<Keyring> {
        let keyring = Keyring::open(&folder.path().join(name)).unwrap();
        keyring.set_own(name, None).unwrap();
        Arc::new(keyring)
    }

    #[test]
    fn a_datagram_of_an_unknown_host_has_few_members_asked_and_a_forged_one_none() {
        const MEMBERS: usize = 8;
        let folder = tempfile::tempdir().unwrap();
        let (host, stranger) = (keyring(&folder, "host"), keyring(&folder, "stranger"));
        let members: Vec<_> = (0..MEMBERS)
            .map(|number| {
                let member = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                member.set_nonblocking(true).unwrap();
                let name = format!("member {number}");
                let address = member.local_addr().unwrap().to_string();
                let key = Fingerprint::of(name.as_bytes());
                let add = |list: &mut MemberList| list.set(key, &name, Some(&address));
                host.update(add).unwrap();
                member
            })
            .collect();
        // Each ends what asks it.
        let asked = || {
            let arrived = |member: &&TcpListener| member.accept().is_ok();
            members.iter().filter(arrived).count()
        };
        let runtime = crate::test_member::runtime();
        runtime.block_on(async {
            let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
            let socket = bind().await.unwrap();
            let to = socket.local_addr().unwrap();
            let mut receiver = MembershipSocket::new(socket, Some(Arc::clone(&host)));
            let sender = bind().await.unwrap();
            let signed = |keys: &Keyring| signed_datagram::sign(keys.key(), b"message").unwrap();
            for first in [vec![7; 32], signed(&stranger)] {
                sender.send_to(&first, to).await.unwrap();
                sender.send_to(&signed(&host), to).await.unwrap();
                assert_eq!(receiver.receive().await, b"message");
                let mut count = 0;
                while receiver.is_asking.load(Ordering::Relaxed) {
                    count += asked();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let most = if first.len() == 32 { 0 } else { MOST_ASKED };
                assert_eq!(count + asked(), most);
            }
        });
    }
}
