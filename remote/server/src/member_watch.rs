//! Keeps a server's list of members that of its cluster.
//!
//! A thread shares lists with one other member after the other, once a minute or when a host with an
//! unknown key connects, and has the server close the links of hosts that are no members any more. Where this host
//! has left its cluster, and with it its key, the server ends: no host accepts the key that it has.

use crate::server::ServerHandle;
use remote_keys::{Keyring, MemberList, sharing};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often a list that was changed here is noticed.
const TICK: Duration = Duration::from_secs(1);
/// How often lists are shared.
const PERIOD: Duration = Duration::from_secs(60);
/// How often they are shared on demand, whatever unknown hosts connect.
const LEAST_PERIOD: Duration = Duration::from_secs(5);

struct MemberWatch {
    keyring: Arc<Keyring>,
    server: ServerHandle,
    wanted: Receiver<()>,
    known: MemberList,
    shared: Instant,
    turn: usize,
}

/// Starts the thread. It ends with the sender, which asks for other members' lists.
///
/// # Errors
/// Where threads are missing.
pub(crate) fn start(keyring: Arc<Keyring>, server: ServerHandle) -> io::Result<Sender<()>> {
    let (sender, wanted) = channel();
    let watch = MemberWatch {
        known: keyring.members().map_err(io::Error::other)?,
        keyring,
        server,
        wanted,
        shared: Instant::now(),
        turn: 0,
    };
    std::thread::Builder::new()
        .name("selfpage-members".to_owned())
        .spawn(move || watch.run())?;
    Ok(sender)
}

impl MemberWatch {
    fn run(mut self) {
        let mut is_wanted = false;
        loop {
            match self.wanted.recv_timeout(TICK) {
                Ok(()) => is_wanted = true,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.keyring.has_left() {
                tracing::error!(
                    "this host has left its cluster, and its key is deleted: the server ends"
                );
                return self.server.stop();
            }
            self.close_removed();
            let period = if is_wanted { LEAST_PERIOD } else { PERIOD };
            if self.shared.elapsed() >= period {
                self.share(is_wanted);
                (self.shared, is_wanted) = (Instant::now(), false);
            }
        }
    }

    fn share(&mut self, with_all: bool) {
        let others = sharing::others(&self.keyring).unwrap_or_default();
        let count = match with_all {
            true => others.len(),
            false => others.len().min(1),
        };
        for _ in 0..count {
            self.turn = (self.turn + 1) % others.len();
            let (_, name, address) = &others[self.turn];
            if let Err(why) = sharing::share_with(&self.keyring, address) {
                tracing::debug!("{name} ({address}) did not share its list of members: {why}");
            }
            // The next one may keep this thread for seconds.
            self.close_removed();
        }
    }

    fn close_removed(&mut self) {
        match self.keyring.members() {
            Ok(members) if members != self.known => {
                if let Err(why) = self.keyring.check_not_removed() {
                    tracing::error!("{why}");
                }
                self.known = members.clone();
                self.server.retain_members(members);
            }
            Ok(_) => {}
            Err(why) => tracing::debug!("{why}"),
        }
    }
}
