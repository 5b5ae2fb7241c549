//! How hosts on one link find each other with nothing configured: a question to a multicast group, which
//! each host with a paging server answers with the address of its control port.
//!
//! *Adaptive Remote Paging for Mobile Computers*, section 2, key issue 3: resource location. The group is one
//! of the local scope (RFC 2365), and the question is not routed (a time to live of 1). mDNS would need its
//! port, which a host's own responder often has.
//!
//! Rule: an answer is an address to try, and nothing more: what is at it introduces itself by the control
//! connection.

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, interval, timeout_at};

/// The group: of the local scope, its last bytes chosen at random.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 71, 163);
/// The port of the group: the one after the control port, whose UDP is the membership's.
const PORT: u16 = crate::CONTROL_PORT + 1;
/// First bytes of each datagram.
const MAGIC: [u8; 8] = *b"selfpg01";
/// How often the group is joined on interfaces that are new.
const JOIN: Duration = Duration::from_secs(1);
/// The longest datagram.
const DATAGRAM: usize = 64;

/// A datagram, after the magic bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Datagram {
    /// Which hosts lend memory?
    Question,
    /// The sender does, and this is its control port.
    Answer(u16),
}

fn encode(datagram: Datagram) -> Vec<u8> {
    // Neither of them fails to be encoded.
    postcard::to_extend(&datagram, MAGIC.to_vec()).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Option<Datagram> {
    let body = bytes.strip_prefix(&MAGIC)?;
    match postcard::take_from_bytes(body) {
        Ok((datagram, [])) => Some(datagram),
        _ => None,
    }
}

/// The addresses of this host's interfaces, one of each.
pub fn own_addresses() -> Vec<Ipv4Addr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let mut addresses: Vec<_> = interfaces
        .into_iter()
        .filter_map(|interface| match interface.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
        .collect();
    // What others reach comes first.
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_link_local()));
    addresses
}

fn socket(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // Several servers of one host have the group's port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.set_multicast_ttl_v4(1)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())?;
    Ok(socket)
}

/// Answers questions with the number of this host's control port, for ever, on interfaces that come later, too.
///
/// # Errors
/// Where there is no socket or no interface for it.
pub async fn answer(control: u16) -> io::Result<()> {
    let socket = UdpSocket::from_std(socket(PORT)?.into())?;
    if join(&socket) == 0 {
        return Err(io::Error::other("no interface takes the multicast group"));
    }
    let mut joins = interval(JOIN);
    let mut bytes = [0; DATAGRAM];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut bytes) => received,
            _ = joins.tick() => {
                // An interface that has the group already refuses it.
                let _ = join(&socket);
                continue;
            }
        };
        let Ok((length, from)) = received else {
            continue;
        };
        if decode(&bytes[..length]) == Some(Datagram::Question) {
            let _ = socket
                .send_to(&encode(Datagram::Answer(control)), from)
                .await;
        }
    }
}

/// Joins the group on the interfaces that there are, and returns on how many it was not joined before.
fn join(socket: &UdpSocket) -> usize {
    let addresses = own_addresses().into_iter();
    let joined = addresses.filter(|address| socket.join_multicast_v4(GROUP, *address).is_ok());
    joined.count()
}

/// Asks on every interface, and returns the control ports that answer within `limit`: of any cluster on the link.
///
/// # Errors
/// Where there is no socket.
pub async fn find(limit: Duration) -> io::Result<BTreeSet<SocketAddr>> {
    let socket = socket(0)?;
    for address in own_addresses() {
        let is_set = socket.set_multicast_if_v4(&address).is_ok();
        let to = SocketAddrV4::new(GROUP, PORT);
        if is_set {
            // An interface that is down does not keep the others from asking.
            let _ = socket.send_to(&encode(Datagram::Question), &to.into());
        }
    }
    let socket = UdpSocket::from_std(socket.into())?;
    let end = Instant::now() + limit;
    let mut found = BTreeSet::new();
    let mut bytes = [0; DATAGRAM];
    while let Ok(Ok((length, from))) = timeout_at(end, socket.recv_from(&mut bytes)).await {
        if let Some(Datagram::Answer(port)) = decode(&bytes[..length]) {
            found.insert(SocketAddr::new(from.ip(), port));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_datagrams_are_read() {
        for datagram in [Datagram::Question, Datagram::Answer(4764)] {
            let bytes = encode(datagram);
            assert_eq!(decode(&bytes), Some(datagram));
            assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(decode(&bytes[1..]), None);
        }
        assert_eq!(decode(b"selfpg01\xff\xff\xff"), None);
    }
}
