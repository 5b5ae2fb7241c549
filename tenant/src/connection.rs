//! A connection to the daemon: one request, one reply.

use super::TenantError;
use super::outage::{MAX_OUTAGE, Outage};
use host::seqpacket;
use protocol::{DaemonEvent, TenantRequest, decode, encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a daemon may take to reply to any request but one for a contract.
const REPLY_TIMEOUT: Duration = match cfg!(test) {
    true => Duration::from_millis(100),
    false => Duration::from_secs(120),
};

/// How long a daemon may take to show or change contracts, for which it waits for nothing.
const ADMIN_TIMEOUT: Duration = match cfg!(test) {
    true => REPLY_TIMEOUT,
    false => Duration::from_secs(10),
};

/// Connects to the daemon at `path`.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, TenantError> {
    seqpacket::connect(path).map_err(|why| {
        let path = path.into();
        match why {
            Errno::ACCESS => TenantError::NotPermitted { path },
            Errno::MFILE | Errno::NFILE => TenantError::NoDescriptor,
            _ => TenantError::NoDaemon { path, why },
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

/// A reply, and the first descriptors with it.
type Reply = (DaemonEvent, [Option<OwnedFd>; 3]);

/// Sends a request and waits for the reply.
pub(crate) fn exchange(
    connection: &OwnedFd,
    request: &TenantRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<Reply, TenantError> {
    send_unless_closed(connection, request, fds)?;
    recv(connection)
}

/// The same for a request of an administrator.
pub(crate) fn exchange_as_admin(
    connection: &OwnedFd,
    request: &TenantRequest,
) -> Result<Reply, TenantError> {
    send_unless_closed(connection, request, &[])?;
    recv_as_admin(connection)
}

/// Receives a further reply to such a request.
pub(crate) fn recv_as_admin(connection: &OwnedFd) -> Result<Reply, TenantError> {
    recv_within(connection, Some(ADMIN_TIMEOUT))
}

/// Sends a request. Where the daemon has closed the connection, its last message may still give the reason.
fn send_unless_closed(
    connection: &OwnedFd,
    request: &TenantRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<(), TenantError> {
    match send(connection, request, fds) {
        Err(Errno::PIPE) => Ok(()),
        sent => sent.map_err(TenantError::Silent),
    }
}

/// Pause between two attempts to connect to a daemon.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Sends a request for a contract to the daemon at `path`, and again to its successor where a daemon ends
/// before it replies.
/// Returns the connection of the reply, and the reply.
pub(crate) fn request_contract(
    path: &Path,
    mut connection: OwnedFd,
    request: &TenantRequest,
) -> Result<(OwnedFd, Reply), TenantError> {
    let mut outage = Outage::new();
    loop {
        outage.on_request(Instant::now());
        let sent = send_unless_closed(&connection, request, &[]);
        // No timeout: the daemon scrubs the swap file of a new tenant first, at the speed of the disk. A daemon
        // that ends meanwhile disconnects.
        match sent.and_then(|()| recv_within(&connection, None)) {
            Err(why) if why.is_end() => {
                let since = outage.on_end(Instant::now()).ok_or(why)?;
                std::thread::sleep(CONNECT_PAUSE);
                connection = connect_next(path, since)?;
            }
            reply => return Ok((connection, reply?)),
        }
    }
}

/// Connects to the successor of a daemon that ended at `ended`.
pub(crate) fn connect_next(path: &Path, ended: Instant) -> Result<OwnedFd, TenantError> {
    loop {
        match connect(path) {
            Err(_) if ended.elapsed() < MAX_OUTAGE => std::thread::sleep(CONNECT_PAUSE),
            result => return result,
        }
    }
}

/// Waits for the next reply.
pub(crate) fn recv(connection: &OwnedFd) -> Result<Reply, TenantError> {
    recv_within(connection, Some(REPLY_TIMEOUT))
}

/// Waits for the next reply for as long as `limit`; without end where it is `None`.
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
        event => Ok((event, std::array::from_fn(|at| message.fds[at].take()))),
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

    /// Sends a request to a daemon that replies after `time`.
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
        let connection = connect(&path)?;
        let reply = match request {
            TenantRequest::Join { .. } => {
                request_contract(&path, connection, request).map(|(_, reply)| reply)
            }
            TenantRequest::List => exchange_as_admin(&connection, request),
            _ => exchange(&connection, request, &[]),
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
        let reply = reply_after(REPLY_TIMEOUT * 3, &join);
        assert!(
            matches!(reply, Ok(DaemonEvent::Admitted { .. })),
            "{reply:?}"
        );
    }

    #[test]
    fn other_requests_end_at_a_daemon_that_does_not_reply() {
        let reply = reply_after(REPLY_TIMEOUT * 3, &TenantRequest::Capacity);
        assert!(
            matches!(reply, Err(TenantError::Silent(Errno::TIMEDOUT))),
            "{reply:?}"
        );
    }

    #[test]
    fn a_daemon_that_is_stopped_is_named_with_what_to_do() {
        let error = reply_after(REPLY_TIMEOUT * 3, &TenantRequest::List).unwrap_err();
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
                    exchange(&ours, &TenantRequest::Capacity, &[])
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
