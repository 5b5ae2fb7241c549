//! Reconnects a session to the next daemon once its daemon has ended or was killed.
//!
//! Before the contract has begun the session requests the same contract from the next daemon. After that it
//! presents its resume token, and the descriptors that it keeps, so that the contract goes
//! on with its frames, its channels and its pending requests.

use super::{RECONNECT_PAUSE, Session, faults};
use crate::TenantError;
use crate::connection::{connect_next, request_contract, try_send};
use crate::outage::MAX_OUTAGE;
use host::seqpacket::{self, Received};
use protocol::{ChannelNumber, DaemonEvent, TenantRequest, decode};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The reason why a daemon does not take a tenant back.
const UNKNOWN: &str = "the daemon waits for no tenant with this resume token: it came back too late, was here already, or had its pages in \
                       another swap file than this daemon's";

/// A connection that the resume token was presented on.
pub(super) struct Resumption {
    connection: OwnedFd,
    /// The daemon has taken the tenant back.
    is_admitted: bool,
    /// Channels that are not sent to the daemon yet.
    unsent: VecDeque<ChannelNumber>,
}

impl Session {
    /// The daemon ended before it confirmed the ledger. The session resumes with the next daemon, as a tenant whose
    /// contract has begun, with the bells that the ledger was made with.
    pub(super) fn start_with_next(&mut self) -> Result<(), TenantError> {
        self.connection = None;
        let begun = Instant::now();
        while begun.elapsed() < MAX_OUTAGE {
            match self.resume() {
                Ok(true) => return Ok(()),
                Ok(false) => std::thread::sleep(RECONNECT_PAUSE),
                Err(why) => return Err(TenantError::Refused(why.into())),
            }
        }
        Err(TenantError::Silent(Errno::PIPE))
    }

    /// The daemon ended before the contract has begun, and nothing that it sent is in use yet: requests the same
    /// contract from the next one.
    pub(super) fn join_again(&mut self) -> Result<(), TenantError> {
        let next = connect_next(&self.path, Instant::now())?;
        let (connection, (event, fds)) = request_contract(&self.path, next, &self.join)?;
        let DaemonEvent::Admitted { tenant, terms, .. } = event else {
            return Err(TenantError::OtherBuild);
        };
        if terms != self.terms {
            return Err(TenantError::Changed {
                requested: self.terms.to_string(),
                granted: terms.to_string(),
            });
        }
        let [doorbell, pressure_bell, _] =
            fds.map(|fd| fd.ok_or(TenantError::Silent(Errno::MFILE)));
        (self.doorbell, self.pressure_bell) = (doorbell?, pressure_bell?);
        (self.connection, self.number) = (Some(connection), tenant);
        Ok(())
    }

    /// Presents the resume token to a daemon, and waits neither for the reply nor for room for a message. Returns false
    /// until the daemon has replied and every channel is sent: a daemon may listen at a socket long before it
    /// serves it. The session keeps a connection that the daemon has accepted, since to disconnect ends the
    /// contract. Only a reply that the daemon has no such contract is an error.
    pub(super) fn resume(&mut self) -> Result<bool, &'static str> {
        let Some(mut resumption) = self.resuming.take().or_else(|| self.rejoin()) else {
            return Ok(false);
        };
        if !resumption.is_admitted {
            let received = seqpacket::receive(&resumption.connection, RecvFlags::DONTWAIT);
            let message = match received {
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.resuming = Some(resumption);
                    return Ok(false);
                }
                Ok(message) => message,
                Err(_) => return Ok(false),
            };
            match decode(message.as_slice()) {
                Some(DaemonEvent::Admitted { terms, .. }) => self.terms = terms,
                Some(DaemonEvent::UnknownToken) => return Err(UNKNOWN),
                // A refusal is of this connection, and not of the contract: the daemon may be short of
                // descriptors for a moment.
                _ => return Ok(false),
            }
            resumption.is_admitted = true;
        }
        while let Some(number) = resumption.unsent.pop_front() {
            let Some(kept) = self.channels.get(&number) else {
                continue;
            };
            let fds = [kept.memory.as_fd(), kept.server_bell.as_fd()];
            let request = TenantRequest::Channel(number);
            match try_send(&resumption.connection, &request, &fds) {
                Ok(()) => {}
                Err(why) if TenantError::Silent(why).is_end() => return Ok(false),
                Err(_) => {
                    resumption.unsent.push_front(number);
                    self.resuming = Some(resumption);
                    return Ok(false);
                }
            }
        }
        self.connection = Some(resumption.connection);
        if let Some(reservation) = self.faults {
            self.send(faults(reservation, true));
        }
        for channel in self.closing.clone() {
            self.send(TenantRequest::Close(channel));
        }
        for (cookie, depth) in self.opening.clone() {
            self.send(TenantRequest::Open { depth, cookie });
        }
        if self.leaving {
            self.send(TenantRequest::Leave);
        }
        Ok(true)
    }

    /// Connects and presents the resume token; `None` where no daemon listens.
    fn rejoin(&self) -> Option<Resumption> {
        let connection = seqpacket::try_connect(&self.path).ok()?;
        let rejoin = TenantRequest::Rejoin {
            resume_token: self.resume_token,
            channels: self.channels.len() as u32,
        };
        // Every process of the tree has the bells of the first daemon, so this daemon takes them over.
        let mut fds = vec![self.doorbell.as_fd(), self.pressure_bell.as_fd()];
        fds.extend(self.ledger.iter().map(AsFd::as_fd));
        try_send(&connection, &rejoin, &fds).ok()?;
        Some(Resumption {
            connection,
            is_admitted: false,
            unsent: self.channels.keys().copied().collect(),
        })
    }
}

/// Pause between two attempts to hand over the channels that a daemon has no room for.
pub(super) const REATTACH_PAUSE: Duration = Duration::from_millis(100);

/// A channel's descriptors, kept for the next daemon.
pub(super) struct KeptChannel {
    pub memory: OwnedFd,
    /// The daemon's end of the client's bell.
    pub server_bell: OwnedFd,
}

impl Session {
    /// Keeps a channel's memory and the daemon's end of its bell for the next daemon;
    /// returns the memory and the client's end.
    pub(super) fn keep_channel(
        &mut self,
        channel: ChannelNumber,
        message: &mut Received,
    ) -> Option<(OwnedFd, OwnedFd)> {
        let [memory, bell, server_bell, ..] = &mut message.fds;
        let (memory, bell, server_bell) = (memory.take()?, bell.take()?, server_bell.take()?);
        let copy = io::fcntl_dupfd_cloexec(&memory, 0).ok()?;
        let held = KeptChannel {
            memory: copy,
            server_bell,
        };
        self.channels.insert(channel, held);
        Some((memory, bell))
    }

    /// Drops a channel that has no I/O in flight.
    pub(super) fn drop_channel(&mut self, channel: ChannelNumber) {
        self.channels.remove(&channel);
        self.closing.retain(|closing| *closing != channel);
    }

    /// Hands over again the channels that the daemon had no room for, when it is time.
    pub(super) fn reattach(&mut self) {
        let (numbers, since) = &mut self.unattached;
        let Some(connection) = &self.connection else {
            return numbers.clear();
        };
        if since.elapsed() < REATTACH_PAUSE {
            return;
        }
        *since = Instant::now();
        numbers.retain(|number| {
            let Some(kept) = self.channels.get(number) else {
                return false;
            };
            let fds = [kept.memory.as_fd(), kept.server_bell.as_fd()];
            let request = TenantRequest::Channel(*number);
            try_send(connection, &request, &fds).is_err()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionEvent;
    use protocol::{ResumeToken, encode};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
    use std::path::Path;

    fn disconnected_session(path: &Path) -> Session {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let terms = protocol::contract_spec::ContractSpec {
            frames: "64M".parse().unwrap(),
            disk: "25ms/250ms".parse().unwrap(),
            swap: 1 << 30,
        };
        Session {
            path: path.into(),
            connection: None,
            resuming: None,
            number: 1,
            resume_token: ResumeToken([7; 16]),
            join: TenantRequest::List,
            terms,
            note: String::new(),
            doorbell: bell(),
            pressure_bell: bell(),
            ledger: Some(bell()),
            channels: Default::default(),
            unattached: (Vec::new(), Instant::now()),
            opening: Default::default(),
            next_cookie: 0,
            closing: Vec::new(),
            unsent: Default::default(),
            faults: None,
            attempted: Instant::now(),
            early: None,
            unpaged: 0,
            revocation: None,
            leaving: false,
            has_ended: false,
        }
    }

    #[test]
    fn requests_wait_for_a_daemon_that_does_not_read() {
        let (own, daemon) = seqpacket::pair().unwrap();
        let mut session = disconnected_session(Path::new("/nowhere"));
        session.connection = Some(own);
        const CHANNELS: u32 = 5_000;
        (0..CHANNELS).for_each(|channel| session.close(channel));
        assert!(!session.unsent.is_empty() && session.timeout().is_some());
        let mut next = 0;
        while next < CHANNELS {
            session.unsent.flush(session.connection.as_ref());
            while let Ok(message) = seqpacket::receive(&daemon, RecvFlags::DONTWAIT) {
                let received = decode(message.as_slice());
                assert_eq!(received, Some(TenantRequest::Close(next)));
                next += 1;
            }
        }
        assert!(session.unsent.is_empty());
    }

    #[test]
    fn a_refusal_of_another_request_leaves_pending_channel_requests() {
        let (own, daemon) = seqpacket::pair().unwrap();
        let mut session = disconnected_session(Path::new("/nowhere"));
        session.connection = Some(own);
        let [first, second] = [(); 2].map(|()| session.open(8));
        let why = || "why".to_owned();
        let (cookie, of_another) = (second, DaemonEvent::Refused(why()));
        for event in [of_another, DaemonEvent::NotOpened { cookie, why: why() }] {
            let bytes = encode(&event).unwrap();
            seqpacket::send(&daemon, &bytes, &[], SendFlags::DONTWAIT).unwrap();
        }
        let events = session.receive();
        assert!(matches!(
            &events[..],
            [SessionEvent::Refused(_), SessionEvent::NotOpened { cookie, .. }] if *cookie == second
        ));
        assert_eq!(session.opening, [(first, 8)]);
    }

    #[test]
    fn the_ledger_guarantees_the_contracts_frames_less_those_reserved_for_unpaged_memory() {
        let (own, daemon) = seqpacket::pair().unwrap();
        let mut session = disconnected_session(Path::new("/nowhere"));
        session.connection = Some(own);
        let (ledger, _) = frames::Ledger::create_limited(16_384, 16_384, 1).unwrap();
        let mut guaranteed = |event: DaemonEvent| {
            let bytes = encode(&event).unwrap();
            seqpacket::send(&daemon, &bytes, &[], SendFlags::DONTWAIT).unwrap();
            session.dispatch(&ledger);
            // All but an eighth.
            ledger.room_to_nail(0) / 7 * 8
        };
        let unpaged = |frames| DaemonEvent::Unpaged { frames };
        assert_eq!(guaranteed(unpaged(8_192)), 8_192);
        let changed = DaemonEvent::Changed {
            terms: protocol::contract_spec::ContractSpec {
                frames: "48M".parse().unwrap(),
                ..disconnected_session(Path::new("/nowhere")).terms
            },
            notice: Default::default(),
        };
        assert_eq!(guaranteed(changed), 4_096);
        assert_eq!(guaranteed(unpaged(0)), 12_288);
    }

    #[test]
    fn channels_wait_for_a_daemon_that_does_not_read() {
        const CHANNELS: u32 = 40;
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (own, daemon) = seqpacket::pair().unwrap();
        // Room for a few messages.
        rustix::net::sockopt::set_socket_send_buffer_size(&own, 4096).unwrap();
        let mut session = disconnected_session(Path::new("/nowhere"));
        session.channels.extend((0..CHANNELS).map(|number| {
            let (memory, server_bell) = (bell(), bell());
            let kept = KeptChannel {
                memory,
                server_bell,
            };
            (number, kept)
        }));
        session.resuming = Some(Resumption {
            connection: own,
            is_admitted: true,
            unsent: (0..CHANNELS).collect(),
        });
        let (read, is_to_read) = std::sync::mpsc::channel();
        let daemon = std::thread::spawn(move || {
            is_to_read.recv_timeout(Duration::from_secs(20)).unwrap();
            (0..CHANNELS).all(|number| {
                let message = seqpacket::receive(&daemon, RecvFlags::empty()).unwrap();
                decode(message.as_slice()) == Some(TenantRequest::Channel(number))
            })
        });
        assert_eq!(session.resume(), Ok(false));
        read.send(()).unwrap();
        while session.resume() == Ok(false) {
            std::thread::yield_now();
        }
        assert!(session.connection.is_some() && daemon.join().unwrap());
    }

    #[test]
    fn only_an_unknown_token_ends_the_contract_and_a_daemon_that_does_not_reply_does_not_block() {
        let name = format!("selfpage-resume-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener =
            rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let mut session = disconnected_session(&path);
        assert_eq!(session.resume(), Ok(false));
        assert_eq!(session.resume(), Ok(false));
        let daemon = rustix::net::accept(&listener).unwrap();
        let received = seqpacket::receive(&daemon, RecvFlags::DONTWAIT).unwrap();
        assert!(matches!(
            decode(received.as_slice()),
            Some(TenantRequest::Rejoin { resume_token, channels: 0 }) if resume_token.0 == [7; 16]
        ));
        let reply = |daemon: &OwnedFd, event: &DaemonEvent| {
            let bytes = encode(event).unwrap();
            seqpacket::send(daemon, &bytes, &[], SendFlags::DONTWAIT).unwrap();
        };
        // A daemon that is short of something refuses the connection.
        reply(&daemon, &DaemonEvent::Refused("try again".into()));
        assert_eq!(session.resume(), Ok(false));
        assert_eq!(session.resume(), Ok(false));
        let daemon = rustix::net::accept(&listener).unwrap();
        let admitted = DaemonEvent::Admitted {
            tenant: 1,
            terms: session.terms,
            note: String::new(),
        };
        reply(&daemon, &admitted);
        assert_eq!(session.resume(), Ok(true));
        assert!(session.connection.is_some());
        session.connection = None;
        assert_eq!(session.resume(), Ok(false));
        let daemon = rustix::net::accept(&listener).unwrap();
        reply(&daemon, &DaemonEvent::UnknownToken);
        assert_eq!(session.resume(), Err(UNKNOWN));
        std::fs::remove_file(&path).unwrap();
    }
}
