//! How a host becomes a member: the inviting host waits, the other one connects and proves the secret.
//!
//! The link is one with keys: the joining host accepts the inviting host's key alone, which the
//! invitation names, and the inviting host accepts any key until the secret is proved. So a host
//! between the two gets neither the secret nor a place in the list.
//!
//! Rules: a peer that does not go on delays no other, since each has a thread; and both hosts say that one has joined
//! once both have written their lists.

use crate::config::{Protocol, Trust, client_config, server_config};
use crate::fingerprint::Fingerprint;
use crate::handshake::Handshake;
use crate::invitation::{Invitation, InvitationError, OpenInvitation, Secret};
use crate::keyring::Keyring;
use crate::keyring_error::KeyringError;
use crate::member_list::MemberList;
use crate::sharing::{LIMIT, SharingError, connect_to, receive, send};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Peers that are served at once, each for some seconds; others wait in the kernel's queue.
const MAX_PEERS: usize = 16;
/// How long one host waits while the other writes its files.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the joining host waits for its handshake: longer than a whole queue of peers that send nothing takes.
const TURN: Duration = Duration::from_secs(30);
/// Failures that are reported: any host can cause them.
const MAX_REPORTS: u32 = 20;

/// What the joining host sends.
#[derive(Serialize, Deserialize)]
struct JoinRequest {
    secret: [u8; 16],
    list: MemberList,
}

/// What the inviting host replies.
#[derive(Serialize, Deserialize)]
enum JoinReply {
    Welcome(MemberList),
    Refused(String),
}

/// What the joining host sends last: it has written its list.
#[derive(Serialize, Deserialize)]
struct JoinConfirmation;

/// Why no host has joined.
#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    /// The port cannot be listened at.
    #[error("cannot wait for the other host at {0}: {1}; choose another address by --listen")]
    Listen(SocketAddr, io::Error),
    /// No address of this host can be reached by others.
    #[error("this host has no address that others reach: name one with --address")]
    NoAddress,
    /// Time is over.
    #[error("no host has joined: {0}")]
    Expired(InvitationError),
    /// A host has used the invitation and may not know it.
    #[error(
        "a host is a member now, and has not confirmed that it knows: if `selfpage cluster show` there does not list this host, \
         run `selfpage cluster remove {}` here, and invite it again", .0.short()
    )]
    Unconfirmed(Fingerprint),
    /// The kernel gives no random bytes.
    #[error("the kernel gives no random bytes for a secret")]
    NoSecret,
    /// This host's own files.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// rustls.
    #[error("cannot prepare a handshake: {0}")]
    Tls(#[from] rustls::Error),
    /// The kernel.
    #[error("cannot wait for the other host: {0}")]
    Wait(#[from] io::Error),
}

/// Why this host has not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No address of the invitation answers.
    #[error(
        "the inviting host does not answer at {0} ({1}): its invitation was used or has expired, `selfpage cluster invite` was ended there, or a \
         firewall is between"
    )]
    Unreachable(String, io::Error),
    /// The link.
    #[error("cannot join: {0}")]
    Link(#[from] SharingError),
    /// The inviting host refuses.
    #[error("the inviting host refuses: {0}")]
    Refused(String),
}

/// The host that has joined, or the host that it has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its key.
    pub key: Fingerprint,
    /// Its name.
    pub name: String,
    /// All members now.
    pub members: usize,
}

/// Waits for a host to use an invitation.
pub struct Inviter {
    listener: TcpListener,
    invitation: Invitation,
    desk: Arc<JoinDesk>,
    /// Attempts that failed, for people.
    pub on_failure: fn(SocketAddr, &dyn std::fmt::Display),
}

impl Inviter {
    /// Listens. `reached_at` are the addresses by which the other host reaches this one; all of this host's
    /// own unless named.
    ///
    /// # Errors
    /// [`InviteError`].
    pub fn open(
        keyring: Arc<Keyring>,
        listen: SocketAddr,
        reached_at: &[IpAddr],
        life: Duration,
    ) -> Result<Self, InviteError> {
        let failed = |why| InviteError::Listen(listen, why);
        let listener = TcpListener::bind(listen).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let addresses = match reached_at {
            [] if listen.ip().is_unspecified() => own_addresses(),
            [] => vec![listen.ip()],
            named => named.to_vec(),
        };
        if addresses.is_empty() {
            return Err(InviteError::NoAddress);
        }
        let secret = Secret::generate().ok_or(InviteError::NoSecret)?;
        let invitation = Invitation {
            addresses: addresses.into_iter().map(|ip| (ip, port).into()).collect(),
            inviter: keyring.fingerprint(),
            secret,
        };
        let desk = JoinDesk {
            config: server_config(keyring.key(), Trust::Any, &[Protocol::Join])?,
            open: Mutex::new(OpenInvitation::new(secret, Instant::now(), life)),
            keyring,
        };
        Ok(Self {
            listener,
            invitation,
            desk: Arc::new(desk),
            on_failure: |peer, why| tracing::warn!("{peer} did not join: {why}"),
        })
    }

    /// What the other host has to be given.
    pub fn invitation(&self) -> &Invitation {
        &self.invitation
    }

    /// Waits until a host has joined. The invitation is void afterwards.
    ///
    /// # Errors
    /// [`InviteError`].
    pub fn wait(self) -> Result<Joined, InviteError> {
        self.listener.set_nonblocking(true)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(eventfd(0, flags).map_err(io::Error::from)?);
        let (sender, outcomes) = channel();
        let (mut peers, mut reports) = (0, 0);
        loop {
            let left = self.desk.left()?;
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let has_room = peers < MAX_PEERS;
            let mut fds = [
                PollFd::new(&*doorbell, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            match poll(&mut fds[..1 + usize::from(has_room)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(io::Error::from(why).into()),
            }
            let _ = rustix::io::read(&*doorbell, &mut [0; 8]);
            while let Ok((peer, outcome)) = outcomes.try_recv() {
                peers -= 1;
                match outcome {
                    Ok(joined) => return Ok(joined),
                    Err(why) if reports < MAX_REPORTS => (self.on_failure)(peer, &why),
                    Err(_) => {}
                }
                reports += 1;
            }
            if has_room && let Ok((stream, peer)) = self.listener.accept() {
                peers += 1;
                let (desk, sender) = (Arc::clone(&self.desk), sender.clone());
                let doorbell = Arc::clone(&doorbell);
                std::thread::Builder::new().spawn(move || {
                    let outcome = desk.welcome(stream);
                    // The inviting thread may have ended with another host.
                    let _ = sender.send((peer, outcome));
                    let _ = rustix::io::write(&*doorbell, &1u64.to_ne_bytes());
                })?;
            }
        }
    }
}

/// What the threads of an invitation share, of which each serves a peer.
struct JoinDesk {
    keyring: Arc<Keyring>,
    config: Arc<rustls::ServerConfig>,
    open: Mutex<OpenInvitation>,
}

impl JoinDesk {
    fn open(&self) -> MutexGuard<'_, OpenInvitation> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the invitation is valid yet.
    fn left(&self) -> Result<Duration, InviteError> {
        let open = self.open();
        let left = open.until().saturating_duration_since(Instant::now());
        match (left.is_zero(), open.used_by()) {
            (false, _) => Ok(left),
            (true, Some(key)) => Err(InviteError::Unconfirmed(key)),
            (true, None) => Err(InviteError::Expired(InvitationError::Expired)),
        }
    }

    fn welcome(&self, stream: TcpStream) -> Result<Joined, SharingError> {
        stream.set_nonblocking(false)?;
        let mut link = Handshake::server(&self.config)?.complete(stream, LIMIT)?;
        let request: JoinRequest = receive(&mut link, LIMIT)?;
        let key = link.peer();
        let list = match self.admit(key, &request) {
            Ok(list) => list,
            Err(why) => {
                send(&mut link, &JoinReply::Refused(why.clone()), LIMIT)?;
                return Err(io::Error::other(why).into());
            }
        };
        let name = joined(&list, key);
        let confirmed = send(&mut link, &JoinReply::Welcome(list), LIMIT)
            .and_then(|()| receive::<JoinConfirmation>(&mut link, PATIENCE));
        match confirmed {
            Ok(JoinConfirmation) => Ok(name),
            Err(why) => {
                let text = format!(
                    "{} has used the invitation, and did not confirm it ({why}): run the same command there again",
                    name.name
                );
                Err(io::Error::other(text).into())
            }
        }
    }

    /// Adds the host, if it has proved the secret.
    fn admit(&self, key: Fingerprint, request: &JoinRequest) -> Result<MemberList, String> {
        let list = self.keyring.members().map_err(|why| why.to_string())?;
        // Before the invitation is used up.
        let secret = Secret(request.secret);
        if request.list.is_removed(&self.keyring.fingerprint()) {
            // Its list would expel this host from its own cluster.
            return Err("the joining host has removed the inviting host's key: run `selfpage cluster leave` on the joining host, and join again".to_owned());
        }
        if list.is_removed(&key) {
            return Err("this key was removed from the cluster: run `selfpage cluster leave` for another key, and join again".to_owned());
        }
        self.open()
            .redeem(&secret, key, Instant::now())
            .map_err(|why| why.to_string())?;
        let add = |list: &mut MemberList| {
            list.merge(&request.list);
            list.clone()
        };
        let list = self.keyring.update(add).map_err(|why| why.to_string())?;
        match list.is_member(&key) {
            true => Ok(list),
            false => Err("the cluster has as many members as a list holds".to_owned()),
        }
    }
}

/// Joins the cluster of the host that has invited this one.
///
/// # Errors
/// [`JoinError`].
pub fn join(keyring: &Keyring, invitation: &Invitation) -> Result<Joined, JoinError> {
    let stream = connect_any(&invitation.addresses)?;
    let trust = Trust::Only(invitation.inviter);
    let config = client_config(keyring.key(), trust, Protocol::Join).map_err(SharingError::from)?;
    let link = Handshake::client(&config).and_then(|it| it.complete(stream, TURN));
    let mut link = link.map_err(SharingError::from)?;
    let request = JoinRequest {
        secret: invitation.secret.0,
        list: keyring.members().map_err(SharingError::from)?,
    };
    send(&mut link, &request, PATIENCE).map_err(SharingError::from)?;
    let list = match receive(&mut link, PATIENCE).map_err(SharingError::from)? {
        JoinReply::Welcome(list) => list,
        JoinReply::Refused(why) => return Err(JoinError::Refused(why)),
    };
    let merged = keyring.update(|own| {
        own.merge(&list);
        own.clone()
    });
    let merged = merged.map_err(SharingError::from)?;
    // This host has joined; the other one says so, or that it does not know.
    let _ = send(&mut link, &JoinConfirmation, LIMIT);
    Ok(joined(&merged, invitation.inviter))
}

fn joined(list: &MemberList, key: Fingerprint) -> Joined {
    Joined {
        key,
        name: list
            .get(&key)
            .map_or_else(|| key.short(), |it| it.name.clone()),
        members: list.len(),
    }
}

fn connect_any(addresses: &[SocketAddr]) -> Result<TcpStream, JoinError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match connect_to(*address) {
            Ok(stream) => return Ok(stream),
            Err(why) => last = why,
        }
    }
    let all: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    Err(JoinError::Unreachable(all.join(", "), last))
}

/// Addresses of this host that others may reach: not loopback, not of one link alone.
pub fn own_addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let addresses = interfaces.into_iter().filter(|it| !it.is_loopback());
    let global = addresses.map(|it| it.ip()).filter(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        // fe80::/10 needs the name of an interface, which is another one there.
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    });
    global.collect()
}
