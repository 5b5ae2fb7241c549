//! Admission of processes: each becomes a domain with its guarantee, receives the memory and
//! descriptors that it works with, and is watched by a pidfd from then on.
//!
//! A parent admits the domain of its child before the fork, so that a fork whose child could not be
//! paged fails as forks do.

use super::new_images::NewImage;
use super::{CONNECTION, LISTENER, MAX_PER_DISPATCH, PIDFD, Supervisor, UNIDENTIFIED};
use crate::TreeEvent;
use crate::descriptor_reserve;
use crate::processes::{PagedProcess, program_of};
use crate::shared_memory::TreeParts;
use crate::sockets::{self, Peer, refuse, send_reply};
use frames::{DomainId, DomainPhase};
use host::fd_reaper::PeerFd;
use host::procfs::is_shortage;
use host::seqpacket::DESCRIPTORS;
use link::MIN_FRAMES;
use link::handshake::{
    FdRole, Hello, Message, ProgramPlace, RawDomainId, Reply, SlotIndex, Welcome, slot_of,
};
use link::shared_request::SharedRequest;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use rustix::process::Pid;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Instant;
use wired::Counter;

/// Most connections that have not sent their first message. Beyond it the oldest is closed: a process
/// sends that message at once.
const MAX_UNIDENTIFIED: usize = 256;

/// A connection whose process has not sent its first message.
pub(super) struct UnidentifiedPeer {
    connection: PeerFd,
    /// The peer of a connection that was made by name; other messages carry their sender.
    peer: Option<Peer>,
}

impl Supervisor {
    pub(super) fn on_hello(
        &mut self,
        connection: PeerFd,
        peer: Peer,
        hello: Hello,
        events: &mut Vec<TreeEvent>,
    ) {
        let Some(pid) = peer.pid else {
            return;
        };
        let program = match hello {
            Hello::Exec { program } | Hello::Fork { program, .. } => program_of(pid, program),
            _ => Some(pid),
        };
        let Some(program) = program else {
            return refuse(&connection, "the program has ended");
        };
        let domain = match hello {
            Hello::Exec { .. } => {
                let Some(user) = peer.user() else {
                    return refuse(&connection, "the program has ended");
                };
                // The previous image ended with the exec, even if its end has not been handled yet.
                self.end_previous_image(program, events);
                match self.check_user(user) {
                    Ok(()) => {
                        let since = Instant::now();
                        self.new_images.push(NewImage {
                            connection,
                            pid,
                            program,
                            since,
                        });
                        return self.admit_images(events);
                    }
                    Err(text) => Err(text),
                }
            }
            Hello::Fork { child, .. } => self.claim(child),
            Hello::Release { parent, child } => {
                if self.is(parent, pid) && self.claim(child).is_ok() {
                    self.reclaim(DomainId::from_raw(child));
                }
                send_reply(&connection, Reply::Released, &[]);
                return;
            }
        };
        // A refused child reports that to its parent, which then releases the domain. So the domain is not reclaimed here:
        // a parent takes the end of its child's domain for a child that has run.
        let slot = domain.and_then(|domain| match descriptor_reserve::has_room_for_more() {
            true => self.admit_process(&connection, pid, program, domain),
            false => Err(cannot_admit(&io::Errno::MFILE.into())),
        });
        if let Ok(slot) = &slot {
            self.stats_page.block(*slot).add(Counter::Forks, 1);
        }
        events.push(joined_or_refused(&connection, program, slot));
    }

    /// Admits new images for which a domain is free, and refuses those that have waited too long.
    pub(super) fn admit_images(&mut self, events: &mut Vec<TreeEvent>) {
        while let Some((image, domain)) = self.new_images.admit(&self.ledger, self.settings.frames)
        {
            let (pid, program) = (image.pid, image.program);
            let slot = domain.and_then(|domain| {
                let entered = self.admit_process(&image.connection, pid, program, domain);
                entered.inspect_err(|_| _ = self.reclaim(domain))
            });
            events.push(joined_or_refused(&image.connection, program, slot));
        }
    }

    /// As [`Supervisor::on_hello`], for a process whose call carries the message.
    pub(super) fn on_hello_by_call(&mut self, connection: PeerFd, pid: Option<Pid>, hello: Hello) {
        let mut events = std::mem::take(&mut self.joined_by_call);
        self.on_hello(connection, Peer { pid, uid: None }, hello, &mut events);
        self.joined_by_call = events;
    }

    /// Checks that a new image of this user may map the tree's store. A process that maps it can read
    /// and change the pages of all others, which natively a process of another user cannot.
    ///
    /// A process that changes its user without exec has the store mapped already, and so have the
    /// children that it forks; that cannot be revoked.
    fn check_user(&self, uid: u32) -> Result<(), String> {
        let own = sockets::own_uid();
        match uid == own || self.settings.share_store {
            true => Ok(()),
            false => Err(format!(
                "this process is user {uid}'s and the tree is user {own}'s: the processes of a tree share one \
                 store and can read each other's pages in it, so another user's process is not given it. Start \
                 this program in a `selfpage run` of its own, as that user, or allow it with --share-store"
            )),
        }
    }

    /// A process requests something of the tree's shared memory.
    pub(super) fn on_shared_request(
        &mut self,
        slot: SlotIndex,
        request: SharedRequest,
        mut fds: impl Iterator<Item = PeerFd>,
    ) {
        let (Some(member), Some(reply)) = (self.members.get_mut(slot), fds.next()) else {
            return;
        };
        let tree = TreeParts {
            ledger: &self.ledger,
            ledger_fd: &self.ledger_fd,
            stats_fd: &self.stats_fd,
            store: self.store.as_ref(),
            frames: self.settings.frames,
            links: &mut self.links,
        };
        self.shared_memory
            .serve(reply, member, request, fds.next(), tree);
    }

    /// Returns true if a process has the domain that it claims.
    fn is(&self, domain: RawDomainId, pid: Pid) -> bool {
        self.members
            .get(slot_of(domain))
            .is_some_and(|member| member.matches(domain, pid))
    }

    /// The domain admitted for a child, if it exists and no process has it.
    fn claim(&self, child: RawDomainId) -> Result<DomainId, String> {
        let domain = DomainId::from_raw(child);
        let free = self.members.get(slot_of(child)).is_none();
        let there = self
            .ledger
            .stats(domain)
            .is_some_and(|v| matches!(v.phase, DomainPhase::Nascent | DomainPhase::Live));
        // Reclaiming it a second time would reclaim the pages of the next domain in its slot.
        let is_ending = self.unfinished.contains(&domain);
        match free && there && !is_ending {
            true => Ok(domain),
            false => Err(
                "the domain admitted for this child has been released, or another process has it"
                    .into(),
            ),
        }
    }

    /// Adds a process to the table, and sends it the welcome.
    fn admit_process(
        &mut self,
        connection: &PeerFd,
        pid: Pid,
        program: Pid,
        domain: DomainId,
    ) -> Result<SlotIndex, String> {
        let slot = slot_of(domain.raw());
        let entered = self.try_admit_process(connection, pid, program, domain);
        entered.map(|()| slot).map_err(|what| {
            self.program_ends.on_ended(slot, program);
            self.members.remove(slot);
            cannot_admit(&what)
        })
    }

    fn try_admit_process(
        &mut self,
        connection: &PeerFd,
        pid: Pid,
        program: Pid,
        domain: DomainId,
    ) -> std::io::Result<()> {
        let member = PagedProcess::new(connection.try_clone()?, pid, program, domain)?;
        let slot = member.slot();
        self.watched
            .add(&member.connection, CONNECTION | u64::from(slot))?;
        self.watched.add(&member.pidfd, PIDFD | u64::from(slot))?;
        let block = self.stats_page.block(slot);
        block.clear();
        // A process that starts careful has nothing to acknowledge.
        let careful = self.stats_page.careful().load(Ordering::SeqCst);
        block.careful_seen().store(careful, Ordering::SeqCst);
        // Published before the program runs: it may end, and its parent continue, before this thread does.
        self.program_ends.on_joined(slot, program);
        match self.welcome(connection, domain) {
            // The process has died, which its pidfd reports.
            Err(why) if why.kind() == ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        self.members.insert(member);
        self.finished.processes += 1;
        Ok(())
    }

    fn welcome(&self, connection: &PeerFd, domain: DomainId) -> std::io::Result<()> {
        let mut fds = vec![
            (FdRole::Ledger, self.ledger_fd.as_fd()),
            (FdRole::StatsPage, self.stats_fd.as_fd()),
        ];
        fds.extend(
            self.settings
                .userfaultfd
                .as_ref()
                .map(|fd| (FdRole::Userfaultfd, fd.as_fd())),
        );
        let bell = self.links.pressure_bell();
        fds.extend(bell.map(|bell| (FdRole::PressureBell, bell)));
        let store = self.store.as_ref();
        let own = store.map(|store| store.description(slot_of(domain.raw())));
        let own = own.transpose()?.flatten();
        let stored = store.map(|store| store.descriptors(own.as_ref()));
        fds.extend(stored.into_iter().flatten().map(|fd| (FdRole::Store, fd)));
        let mut roles = [FdRole::Nothing; DESCRIPTORS];
        roles
            .iter_mut()
            .zip(&fds)
            .for_each(|(place, (role, _))| *place = *role);
        let fds: Vec<_> = fds.into_iter().map(|(_, fd)| fd).collect();
        let (frames, options) = (self.settings.frames, self.settings.options);
        let welcome = Welcome {
            domain: domain.raw(),
            frames,
            guaranteed: MIN_FRAMES,
            options,
            roles,
        };
        Ok(sockets::try_send_reply(
            connection,
            Reply::Welcome(welcome),
            &fds,
        )?)
    }

    pub(super) fn on_port(&mut self, events: &mut Vec<TreeEvent>) {
        for _ in 0..MAX_PER_DISPATCH {
            let received = sockets::receive(&self.listeners.port, sockets::own_uid());
            let Ok((message, mut fds)) = received else {
                return;
            };
            if message.len == 0 {
                return;
            }
            let Some(sender) = message.sender else {
                continue;
            };
            match (fds.next(), Hello::decode(message.as_slice())) {
                (Some(connection), Some(hello)) => {
                    self.on_hello(connection, sender.into(), hello, events)
                }
                (Some(connection), None) => refuse(&connection, sockets::OTHER_BUILD),
                (None, _) => events.extend(TreeEvent::of_message(sender.pid, message.as_slice())),
            }
        }
    }

    /// Watches the socket with a name, where there is one, unless too many descriptors wait to be
    /// closed: any user may connect, and send descriptors whose close takes for ever.
    pub(super) fn watch_listener(&mut self) -> io::Result<()> {
        if let (Some(listener), false) = (self.listeners.listener(), PeerFd::is_reaper_full()) {
            self.watched.add(listener, LISTENER)?;
            self.accepts_by_name = true;
        }
        Ok(())
    }

    pub(super) fn on_listener(&mut self) {
        for _ in 0..MAX_PER_DISPATCH {
            if PeerFd::is_reaper_full() {
                self.accepts_by_name = false;
                self.listeners
                    .listener()
                    .inspect(|it| self.watched.remove(it));
                return;
            }
            let Some((connection, peer)) = self.listeners.accept() else {
                return;
            };
            // The name is no secret; only our own tree may join.
            if peer.is_of_tree() {
                self.add_unidentified(connection, Some(peer));
            }
        }
    }

    pub(super) fn add_unidentified(&mut self, connection: PeerFd, peer: Option<Peer>) {
        let token = UNIDENTIFIED | (self.next_unidentified & 0xffff_ffff);
        self.next_unidentified += 1;
        if self.watched.add(&connection, token).is_ok() {
            self.unidentified
                .insert(token, UnidentifiedPeer { connection, peer });
        }
        if self.unidentified.len() > MAX_UNIDENTIFIED {
            self.unidentified.pop_first();
        }
    }

    pub(super) fn on_unidentified(&mut self, token: u64, events: &mut Vec<TreeEvent>) {
        let Some(UnidentifiedPeer { connection, peer }) = self.unidentified.remove(&token) else {
            return;
        };
        self.watched.remove(&connection);
        let Ok((message, _)) = sockets::receive(&connection, connection.uid()) else {
            return;
        };
        let Some(peer) = peer.or(message.sender.map(Peer::from)) else {
            return;
        };
        match (Hello::decode(message.as_slice()), peer.pid) {
            (Some(hello), _) => self.on_hello(connection, peer, hello, events),
            (None, Some(pid)) => events.extend(TreeEvent::of_message(pid, message.as_slice())),
            (None, None) => {}
        }
    }

    /// Admits a process on behalf of this one.
    #[doc(hidden)]
    pub fn admit_for_test(&mut self, connection: OwnedFd, pid: Pid) {
        let peer = Peer {
            pid: Some(pid),
            uid: Some(sockets::own_uid()),
        };
        self.on_hello(
            PeerFd::new(connection, sockets::own_uid()),
            peer,
            Hello::Exec {
                program: ProgramPlace::default(),
            },
            &mut Vec::new(),
        );
    }
}

fn cannot_admit(why: &std::io::Error) -> String {
    let remedy = match is_shortage(why) {
        true => ": raise `ulimit -n` before it",
        false => "",
    };
    format!("`selfpage run` cannot admit one more process ({why}){remedy}")
}

/// The event of a process's first message. Sends the refusal if there is one.
fn joined_or_refused(
    connection: &PeerFd,
    program: Pid,
    slot: Result<SlotIndex, String>,
) -> TreeEvent {
    match slot {
        Ok(slot) => TreeEvent::Joined { slot, pid: program },
        Err(text) => {
            refuse(connection, &text);
            TreeEvent::Notice { pid: program, text }
        }
    }
}
