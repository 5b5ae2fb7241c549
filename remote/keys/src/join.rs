//! How a host becomes a member: the inviting host waits, the other one connects and proves the secret.
//!
//! The link is one with keys: the joining host accepts the inviting host's key alone, which the
//! invitation names, and the inviting host accepts any key until the secret is proved. So a host
//! between the two gets neither the secret nor a place in the list.

use crate::config::{Protocol, Trust, client_config, server_config};
use crate::fingerprint::Fingerprint;
use crate::handshake::Handshake;
use crate::invitation::{Invitation, InvitationError, OpenInvitation, Secret};
use crate::keyring::{Keyring, KeyringError};
use crate::member_list::MemberList;
use crate::sharing::{LIMIT, SharingError, connect_to, receive, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    keyring: Arc<Keyring>,
    listener: TcpListener,
    invitation: Invitation,
    open: OpenInvitation,
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
        Ok(Self {
            keyring,
            listener,
            invitation,
            open: OpenInvitation::new(secret, Instant::now(), life),
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
    pub fn wait(mut self) -> Result<Joined, InviteError> {
        let trust = Trust::Any;
        let config = server_config(self.keyring.key(), trust, &[Protocol::Join])?;
        self.listener.set_nonblocking(true)?;
        loop {
            let left = self.open.until().saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(InviteError::Expired(InvitationError::Expired));
            }
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(io::Error::from(why).into()),
            }
            let Ok((stream, peer)) = self.listener.accept() else {
                continue;
            };
            match self.welcome(stream, &config) {
                Ok(joined) => return Ok(joined),
                Err(why) => (self.on_failure)(peer, &why),
            }
        }
    }

    fn welcome(
        &mut self,
        stream: TcpStream,
        config: &Arc<rustls::ServerConfig>,
    ) -> Result<Joined, SharingError> {
        stream.set_nonblocking(false)?;
        let mut link = Handshake::server(config)?.complete(stream, LIMIT)?;
        let request: JoinRequest = receive(&mut link)?;
        let key = link.peer();
        let outcome = self.admit(key, &request);
        let reply = match &outcome {
            Ok(list) => JoinReply::Welcome(list.clone()),
            Err(why) => JoinReply::Refused(why.clone()),
        };
        send(&mut link, &reply)?;
        let list = outcome.map_err(io::Error::other)?;
        Ok(joined(&list, key))
    }

    /// Adds the host, if it has proved the secret.
    fn admit(&mut self, key: Fingerprint, request: &JoinRequest) -> Result<MemberList, String> {
        let is_removed = |list: &MemberList| list.is_removed(&key);
        let list = self.keyring.members().map_err(|why| why.to_string())?;
        // Before the invitation is used up.
        let secret = Secret(request.secret);
        if is_removed(&list) {
            return Err("this key was removed from the cluster: run `selfpage cluster leave` for another key, and join again".to_owned());
        }
        self.open
            .redeem(&secret, Instant::now())
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
    let link = Handshake::client(&config).and_then(|it| it.complete(stream, LIMIT));
    let mut link = link.map_err(SharingError::from)?;
    let request = JoinRequest {
        secret: invitation.secret.0,
        list: keyring.members().map_err(SharingError::from)?,
    };
    send(&mut link, &request).map_err(SharingError::from)?;
    let list = match receive(&mut link).map_err(SharingError::from)? {
        JoinReply::Welcome(list) => list,
        JoinReply::Refused(why) => return Err(JoinError::Refused(why)),
    };
    let merged = keyring.update(|own| {
        own.merge(&list);
        own.clone()
    });
    let merged = merged.map_err(SharingError::from)?;
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
