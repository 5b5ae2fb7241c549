//! The places of clients that a manager before has admitted, until they are served again.

use crate::admission::AdmissionRefusal;
use crate::client_record::ClientRecord;
use crate::keeper_link::KeptPart;
use crate::manager_state::ManagerState;
use rustix::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a thread polls for the end of the one before it.
const FORMER_POLL: Duration = Duration::from_millis(100);

/// The place of a client that is not served again yet, until this is dropped: no new client gets it.
pub(crate) struct KeptPlace<'a> {
    shared: &'a ManagerState,
    uid: u32,
    /// New clients wait for it.
    is_awaited: bool,
}

impl<'a> KeptPlace<'a> {
    /// Of a client of a user that new clients wait for: it is counted as such.
    pub fn new(shared: &'a ManagerState, uid: u32) -> Self {
        Self {
            shared,
            uid,
            is_awaited: true,
        }
    }

    /// Its user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Waits until the thread that has served the client has ended, which may be in a call for the client still: no other client waits
    /// for that. From then on this thread is the one that serves it.
    pub fn await_former(&mut self, kept: &[(KeptPart, OwnedFd)]) -> Result<(), AdmissionRefusal> {
        let record = kept.iter().find(|(part, _)| *part == KeptPart::Record);
        let Some(Ok(record)) = record.map(|(_, fd)| ClientRecord::attach(fd)) else {
            return Ok(());
        };
        while record.has_server() {
            if self.hold_up() {
                tracing::warn!(
                    "client {}, process {}, holds up a call of the manager before, and waits until that has returned",
                    record.number(),
                    record.pid()
                );
            }
            if self.shared.is_stopping() {
                return Err(AdmissionRefusal::Ended);
            }
            std::thread::sleep(FORMER_POLL);
        }
        record.set_server();
        Ok(())
    }

    /// New clients wait for it no longer. Returns true if they did.
    fn hold_up(&mut self) -> bool {
        let was_awaited = std::mem::replace(&mut self.is_awaited, false);
        if was_awaited {
            self.shared.held_up().push(self.uid);
            self.shared.resuming.fetch_sub(1, Ordering::Relaxed);
        }
        was_awaited
    }
}

impl Drop for KeptPlace<'_> {
    fn drop(&mut self) {
        if self.is_awaited {
            self.shared.resuming.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let mut held_up = self.shared.held_up();
        let at = held_up.iter().position(|uid| *uid == self.uid);
        at.map(|at| held_up.swap_remove(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::resume;
    use crate::client_record::MemoryKind;
    use crate::commands::Commands;
    use crate::handoff::Handoff;
    use crate::kept_service::KeptClient;
    use crate::manager_record::ManagerRecord;
    use crate::server::ManagerConfig;
    use std::collections::BTreeMap;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    fn record(number: u64) -> (Arc<ClientRecord>, OwnedFd) {
        let handoff = Handoff {
            mappings: Vec::new(),
            page_size: wired::PAGE,
        };
        ClientRecord::create(number, 1, &handoff, MemoryKind::Private).unwrap()
    }

    #[test]
    fn a_client_that_is_held_up_keeps_its_place() {
        let config = ManagerConfig {
            socket: "unused".into(),
            snapshot: None,
            size: 0,
            contract: None,
            disk: ManagerConfig::equal_share(),
            uses_working_set: false,
            cache: None,
            most_clients: 1,
            most_clients_of_a_user: usize::MAX,
            patience: Duration::ZERO,
        };
        let manager = Arc::new(ManagerRecord::new("").unwrap());
        let shared = Arc::new(ManagerState::new(config, manager, None).unwrap());
        let (former, fd) = record(1);
        // This thread is the one that has served it.
        former.set_server();
        let (_peer, connection) = UnixStream::pair().unwrap();
        let client = KeptClient {
            slot: 0,
            connection: connection.into(),
            parts: vec![(KeptPart::Record, fd)],
            children: BTreeMap::new(),
        };
        assert!(resume(&shared, vec![client]).is_empty());
        while shared.resuming.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let commands = Arc::new(Commands::new().unwrap());
        let admitted = shared.admit(&record(2).0, &commands, 0);
        assert!(matches!(admitted, Err(AdmissionRefusal::Clients(1))));
        rustix::io::write(&*shared.stop, &1u64.to_ne_bytes()).unwrap();
        let threads = std::mem::take(&mut *shared.threads());
        threads.into_iter().for_each(|it| it.join().unwrap());
        assert!(shared.held_up().is_empty());
        shared.admit(&record(2).0, &commands, 0).unwrap();
    }
}
