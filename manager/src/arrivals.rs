//! Clients from their arrival to their end: a hand-off that is received and admitted, or what a keeper has of a client.

use crate::admission::{Admission, AdmissionRefusal};
use crate::client::{ClientFds, HandlerThread};
use crate::client_record::ClientRecord;
use crate::commands::Commands;
use crate::counters::Counters;
use crate::keeper_link::{KeepError, KeeperLink, KeptSlot};
use crate::kept_place::KeptPlace;
use crate::kept_service::{KeptClient, KeptParts};
use crate::manager_state::ManagerState;
use crate::peer::{Peer, PeerConnection};
use host::fd_reaper::{PeerFd, peer_uid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The name of a thread that serves a client.
const CLIENT_THREAD: &str = "selfpage-client";
/// The pause after a connection that cannot be accepted.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Has clients' threads go on with what the keeper has of those that were admitted. Returns the others.
pub(crate) fn resume(shared: &Arc<ManagerState>, clients: Vec<KeptClient>) -> Vec<KeptClient> {
    let is_admitted = |client: &KeptClient| !client.parts.is_empty();
    let (admitted, pending): (Vec<_>, Vec<_>) = clients.into_iter().partition(is_admitted);
    for client in admitted {
        let slot = shared.keeper.as_ref().map(|link| link.slot(client.slot));
        shared.resuming.fetch_add(1, Ordering::Relaxed);
        let started = shared.spawn(CLIENT_THREAD, move |shared| {
            serve_kept(shared, client, slot)
        });
        if let Err(why) = started {
            shared.resuming.fetch_sub(1, Ordering::Relaxed);
            tracing::error!("a client that was served gets no thread, and waits: {why}");
        }
    }
    pending
}

/// Starts the threads of clients until the server stops: of those whose hand-off was not complete, and of new ones. Their
/// connections come from the keeper, or from `listener` where there is none, or none any more.
pub(crate) fn accept(
    shared: &Arc<ManagerState>,
    listener: &UnixListener,
    pending: Vec<KeptClient>,
) {
    // A new client may not take what one was promised that is being resumed.
    while shared.resuming.load(Ordering::Relaxed) > 0 && !shared.is_stopping() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for client in pending {
        let slot = shared.keeper.as_ref().map(|link| link.slot(client.slot));
        start(shared, client.connection.into(), slot);
    }
    if let Some(link) = &shared.keeper {
        while await_arrival(shared, link) {
            let Some((slot, connection)) = link.receive() else {
                if on_keeper_ended(link) {
                    return;
                }
                break;
            };
            let slot = link.slot(slot);
            match connection {
                Some(connection) => start(shared, connection, Some(slot)),
                None => {
                    tracing::warn!(
                        "a connection is refused: no descriptor is left for it (`ulimit -n`)"
                    );
                    slot.release_unawaited();
                }
            }
        }
    }
    while await_arrival(shared, listener) {
        match listener.accept() {
            Ok((connection, _)) => start(shared, connection, None),
            Err(why) => {
                tracing::warn!("a connection cannot be accepted: {why}; pausing for 100 ms");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Returns true if new connections are left to the next service.
fn on_keeper_ended(link: &KeeperLink) -> bool {
    match link.is_stored() {
        true => tracing::error!(
            "the keeper of this manager has ended: guests are served on until systemd starts the service again"
        ),
        false => tracing::error!(
            "the keeper of this manager has ended: guests are served on, and wait for ever at their next fault where \
             this process ends; start the service again when they have ended"
        ),
    }
    link.is_stored()
}

/// Waits until a connection is there. Returns false where the server stops.
pub(crate) fn await_arrival(shared: &ManagerState, source: impl AsFd) -> bool {
    let mut ready = [
        PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN),
        PollFd::new(&*shared.stop, PollFlags::IN),
    ];
    while let Err(rustix::io::Errno::INTR) = poll(&mut ready, None) {}
    !shared.is_stopping()
}

/// Starts the thread of a connection.
fn start(shared: &Arc<ManagerState>, connection: UnixStream, slot: Option<KeptSlot>) {
    let uid = peer_uid(&connection);
    if PeerFd::is_behind(uid) {
        slot.as_ref().inspect(|slot| slot.release_unawaited());
        let _ = connection.shutdown(Shutdown::Both);
        drop(PeerFd::new(connection.into(), uid));
        return tracing::warn!(
            "a connection of user {uid} is refused: too many descriptors that it sent are still being closed"
        );
    }
    let (connection, release) = (Arc::new(connection), slot.clone());
    let number = shared.pending_handoffs().add(&connection);
    let own = Arc::clone(&connection);
    let started = shared.spawn(CLIENT_THREAD, move |shared| {
        serve_new(shared, own.into(), number, slot)
    });
    if let Err(why) = started {
        shared.pending_handoffs().remove(number);
        // This thread may not wait for the keeper, nor for the peer.
        release.inspect(KeptSlot::release_unawaited);
        drop(Arc::into_inner(connection).map(|it| PeerFd::new(it.into(), uid)));
        tracing::warn!("a client gets no thread: {why}");
    }
}

/// Receives a hand-off and serves the client until it ends.
fn serve_new(
    shared: &ManagerState,
    connection: PeerConnection,
    number: u64,
    slot: Option<KeptSlot>,
) {
    let covered = match &shared.config.snapshot {
        Some(snapshot) => snapshot.len(),
        None => shared.config.size,
    };
    let peer = Peer::receive(&connection, covered, shared.config.patience);
    let has_place = shared.pending_handoffs().remove(number);
    let served = match peer {
        // It gave way to another.
        _ if !has_place => None,
        Ok(peer) => {
            let pid = peer.pid;
            match admit(shared, peer, &connection, slot.as_ref()) {
                // Neither taken nor refused, as long as this process lives: the next service receives it.
                Err(AdmissionRefusal::Keeper(KeepError::Ended)) => {
                    return std::mem::forget(connection);
                }
                Err(why) => {
                    tracing::warn!("the hand-off of process {pid} is refused: {why}");
                    None
                }
                Ok(fds) => Some(fds),
            }
        }
        Err(_) if shared.is_stopping() => return,
        Err(why) => {
            tracing::warn!("a hand-off is refused: {why}");
            None
        }
    };
    // A manager that stops leaves its clients to the keeper, which ends with it.
    if !shared.is_stopping() {
        // Before the connection: only hand-offs that are under way take the keeper's places for such.
        slot.inspect(KeptSlot::release);
        connection.end();
    }
    drop(served);
}

fn admit(
    shared: &ManagerState,
    peer: Peer,
    connection: &PeerConnection,
    slot: Option<&KeptSlot>,
) -> Result<ClientFds, AdmissionRefusal> {
    let pages = peer.handoff.len() / peer.handoff.page_size;
    let (working_set, recording) = shared.working_set(pages);
    let commands = Arc::new(Commands::new().map_err(std::io::Error::from)?);
    let admission = Admission { shared };
    let (record, record_fd) = admission.record(&peer)?;
    record.set_server();
    shared.admit(&record, &commands, connection.uid())?;
    let admitted = admission.admit(peer, (&record, record_fd), slot, &commands);
    let admitted = admitted.and_then(|mut parts| {
        (parts.working_set, parts.recording) = (working_set, recording);
        Ok(HandlerThread::admit(parts)?)
    });
    let served = admitted.map(|client| {
        // The keeper has what came with it.
        connection.take_message();
        tracing::info!(
            "serves client {}, process {}, {}",
            record.number(),
            record.pid(),
            wired::Bytes(record.handoff().len() as u64)
        );
        serve(shared, client, &record)
    });
    shared.leave(record.number());
    served
}

/// Goes on with a client that a manager before served. Where that fails its faults wait, for a manager after this one.
fn serve_kept(shared: &ManagerState, client: KeptClient, slot: Option<KeptSlot>) {
    let connection = PeerConnection::from(Arc::new(UnixStream::from(client.connection)));
    let kept = (client.parts, client.children);
    match readmit(shared, kept, &connection, slot.as_ref()) {
        Ok(_) | Err(AdmissionRefusal::Ended) if shared.is_stopping() => {}
        Ok(_) | Err(AdmissionRefusal::Ended) => {
            slot.inspect(KeptSlot::release);
            connection.end();
        }
        Err(why) => tracing::error!(
            "a client of the manager before cannot be served again, and waits: {why}"
        ),
    }
}

fn readmit(
    shared: &ManagerState,
    kept: KeptParts,
    connection: &PeerConnection,
    slot: Option<&KeptSlot>,
) -> Result<ClientFds, AdmissionRefusal> {
    let mut place = KeptPlace::new(shared, connection.uid());
    place.await_former(&kept.0)?;
    let (client, record) = resume_client(shared, kept, slot, place)?;
    connection.take_message();
    let fds = serve(shared, client, &record);
    shared.leave(record.number());
    Ok(fds)
}

fn resume_client(
    shared: &ManagerState,
    kept: KeptParts,
    slot: Option<&KeptSlot>,
    place: KeptPlace<'_>,
) -> Result<(HandlerThread, Arc<ClientRecord>), AdmissionRefusal> {
    let commands = Arc::new(Commands::new().map_err(std::io::Error::from)?);
    let admission = Admission { shared };
    let parts = admission.readmit(kept, slot.cloned(), &commands)?;
    let record = Arc::clone(&parts.record);
    let client = HandlerThread::resume(parts)?;
    shared.readmit(&record, &commands, place);
    Ok((client, record))
}

fn serve(shared: &ManagerState, client: HandlerThread, record: &Arc<ClientRecord>) -> ClientFds {
    let (recording, fds) = client.serve();
    shared.keep_working_set(recording);
    let number = record.number();
    tracing::info!("client {number} has ended: {}", summary(record.counters()));
    fds
}

fn summary(counters: &Counters) -> String {
    let figures = counters.all().filter(|(_, value)| *value > 0);
    let figures: Vec<_> = figures
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    figures.join(", ")
}
