//! A connection to the daemon: one request, one reply.

use super::TenantError;
use super::outage::{Outage, RETURN};
use host::seqpacket;
use protocol::{DaemonEvent, TenantRequest, decode, encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a daemon may take to reply to a request, but for one for a contract.
const PATIENCE: Duration = match cfg!(test) {
    true => Duration::from_millis(100),
    false => Duration::from_secs(120),
};

/// How long a daemon may take to show or change contracts, for which it waits for nothing.
const ADMIN_PATIENCE: Duration = match cfg!(test) {
    true => PATIENCE,
    false => Duration::from_secs(10),
};

/// Connects to the daemon at `path`.
pub(crate) fn reach(path: &Path) -> Result<OwnedFd, TenantError> {
    seqpacket::connect(path).map_err(|why| {
        let path = path.into();
        match why {
            Errno::ACCESS => TenantError::KeptOut { path },
            Errno::MFILE | Errno::NFILE => TenantError::NoDescriptor,
            _ => TenantError::Nobody { path, why },
        }
    })
}

/// Sends one message.
pub(crate) fn send(
    to: impl AsFd,
    message: &impl serde::Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(message).map_err(|_| Errno::MSGSIZE)?;
    seqpacket::send(to, &bytes, fds, SendFlags::empty())
}

/// Sends one message, if there is room for it (EAGAIN), and for its descriptors (ETOOMANYREFS).
pub(crate) fn try_send(
    to: impl AsFd,
    message: &TenantRequest,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(message).map_err(|_| Errno::MSGSIZE)?;
    seqpacket::try_send(to, &bytes, fds, SendFlags::DONTWAIT)
}

/// An answer, and the first descriptors with it.
type Reply = (DaemonEvent, [Option<OwnedFd>; 3]);

/// Sends a request and waits for the reply.
pub(crate) fn converse(
    connection: &OwnedFd,
    ask: &TenantRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<Reply, TenantError> {
    send_unless_closed(connection, ask, fds)?;
    recv(connection)
}

/// The same for a request of an administrator, and for each further reply to it.
pub(crate) fn administer(connection: &OwnedFd, ask: &TenantRequest) -> Result<Reply, TenantError> {
    send_unless_closed(connection, ask, &[])?;
    recv_administered(connection)
}

pub(crate) fn recv_administered(connection: &OwnedFd) -> Result<Reply, TenantError> {
    recv_within(connection, Some(ADMIN_PATIENCE))
}

/// Sends a request. Where the daemon has closed the connection, its reply may still say why.
fn send_unless_closed(
    connection: &OwnedFd,
    ask: &TenantRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<(), TenantError> {
    match send(connection, ask, fds) {
        Err(Errno::PIPE) => Ok(()),
        sent => sent.map_err(TenantError::Silent),
    }
}

/// Pause between two attempts to connect to it.
const LOOK: Duration = Duration::from_millis(20);

/// Sends a request for a contract to the daemon at `path`, and to the next where that ends before it
/// replies.
/// Returns the connection of the reply, and the reply.
pub(crate) fn ask(
    path: &Path,
    mut connection: OwnedFd,
    ask: &TenantRequest,
) -> Result<(OwnedFd, Reply), TenantError> {
    let mut outage = Outage::new();
    loop {
        outage.on_request(Instant::now());
        let sent = send_unless_closed(&connection, ask, &[]);
        // The swap file of a new tenant is scrubbed first, which takes as long as its disk does. A daemon
        // that ends meanwhile disconnects.
        match sent.and_then(|()| recv_within(&connection, None)) {
            Err(why) if why.is_end() => {
                let since = outage.on_end(Instant::now()).ok_or(why)?;
                std::thread::sleep(LOOK);
                connection = reach_next(path, since)?;
            }
            answer => return Ok((connection, answer?)),
        }
    }
}

/// Connects to the daemon that follows one that ended then.
pub(crate) fn reach_next(path: &Path, ended: Instant) -> Result<OwnedFd, TenantError> {
    loop {
        match reach(path) {
            Err(_) if ended.elapsed() < RETURN => std::thread::sleep(LOOK),
            reached => return reached,
        }
    }
}

/// ReplySender for the next answer.
pub(crate) fn recv(connection: &OwnedFd) -> Result<Reply, TenantError> {
    recv_within(connection, Some(PATIENCE))
}

/// The same, with another limit on the wait or none.
fn recv_within(connection: &OwnedFd, limit: Option<Duration>) -> Result<Reply, TenantError> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    wait(connection, deadline).map_err(TenantError::Silent)?;
    let mut message =
        seqpacket::receive(connection, RecvFlags::DONTWAIT).map_err(TenantError::Silent)?;
    if message.len == 0 {
        return Err(TenantError::Silent(Errno::PIPE));
    }
    match decode(message.as_slice()).ok_or(TenantError::OtherBuild)? {
        DaemonEvent::Refused(why) | DaemonEvent::NotOpened { why, .. } => {
            Err(TenantError::Refused(why))
        }
        say => Ok((say, std::array::from_fn(|at| message.fds[at].take()))),
    }
}

fn wait(connection: &OwnedFd, deadline: Option<Instant>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    loop {
        let left = deadline.map(|by| by.saturating_duration_since(Instant::now()));
        // A deadline beyond the range of the kernel's times means no timeout.
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::ResumeToken;
    use protocol::contract_spec::ContractSpec;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, accept, bind, listen, socket};

    /// Sends a request to a daemon that replies so long after it.
    fn reply_after(time: Duration, request: &TenantRequest) -> Result<DaemonEvent, TenantError> {
        let folder = std::env::temp_dir();
        let id = format!("{:?}", std::thread::current().id());
        let path = folder.join(format!("selfpage-wait-{}-{id}", std::process::id()));
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 4).unwrap();
        let daemon = std::thread::spawn(move || {
            let peer = accept(&listener).unwrap();
            seqpacket::receive(&peer, RecvFlags::empty()).unwrap();
            std::thread::sleep(time);
            let terms = ContractSpec {
                frames: "64M".parse().unwrap(),
                disk: "25ms/250ms".parse().unwrap(),
                swap: 1 << 30,
            };
            let note = String::new();
            let bytes = encode(&DaemonEvent::Admitted {
                tenant: 1,
                terms,
                note,
            });
            let _ = seqpacket::send(&peer, &bytes.unwrap(), &[], SendFlags::empty());
        });
        let connection = reach(&path)?;
        let reply = match request {
            TenantRequest::Join { .. } => ask(&path, connection, request).map(|(_, reply)| reply),
            TenantRequest::List => administer(&connection, request),
            _ => converse(&connection, request, &[]),
        };
        daemon.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        reply.map(|(event, _)| event)
    }

    #[test]
    fn a_contract_is_waited_for_as_long_as_the_daemon_is_there() {
        let join = TenantRequest::Join {
            resume_token: ResumeToken([0; 16]),
            name: String::new(),
            frames: None,
            disk: None,
            swap: None,
            place: None,
        };
        let reply = reply_after(PATIENCE * 3, &join);
        assert!(
            matches!(reply, Ok(DaemonEvent::Admitted { .. })),
            "{reply:?}"
        );
    }

    #[test]
    fn other_requests_end_at_a_daemon_that_does_not_reply() {
        let reply = reply_after(PATIENCE * 3, &TenantRequest::Capacity);
        assert!(
            matches!(reply, Err(TenantError::Silent(Errno::TIMEDOUT))),
            "{reply:?}"
        );
    }

    #[test]
    fn a_daemon_that_is_stopped_is_named_with_what_to_do() {
        let error = reply_after(PATIENCE * 3, &TenantRequest::List).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("kill -CONT"), "{text}");
    }

    /// Refuses before the request, or after it with the request unread, and closes.
    #[test]
    fn a_refusal_with_which_the_connection_closes_arrives() {
        for is_before in [true, false] {
            let (ours, theirs) = seqpacket::pair().unwrap();
            let refuse = |peer: OwnedFd| {
                let refused = encode(&DaemonEvent::Refused("no room".into())).unwrap();
                seqpacket::send(&peer, &refused, &[], SendFlags::empty()).unwrap();
            };
            let reply = match is_before {
                true => {
                    refuse(theirs);
                    converse(&ours, &TenantRequest::Capacity, &[])
                }
                false => {
                    send(&ours, &TenantRequest::Capacity, &[]).unwrap();
                    refuse(theirs);
                    recv(&ours)
                }
            };
            assert!(
                matches!(&reply, Err(TenantError::Refused(why)) if why == "no room"),
                "{reply:?}"
            );
        }
    }
}
