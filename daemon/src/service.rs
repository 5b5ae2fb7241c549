//! The service of connections: tenants' in batches, all others in turn.

use crate::Daemon;
use crate::connections::{Incoming, LISTENER, MAX_SERVICE};
use std::time::{Duration, Instant};

impl Daemon {
    /// Serves a connection: so many messages at most.
    pub(super) fn serve(&mut self, token: u64, most: usize) {
        if self.connections().take_writable(token) {
            self.on_writable(token);
        }
        for _ in 0..most {
            match self.connections_mut().receive(token) {
                Incoming::Message(mut arrived, person) => {
                    self.dispatch(token, &mut arrived.message);
                    self.connections_mut().discard(*arrived, person);
                }
                Incoming::HungUp => self.contracts.on_hang_up(token),
                Incoming::Violation(why) => self.contracts.disconnect(token, why),
                Incoming::Nothing => return,
            }
        }
    }

    /// Serves those without a contract, if it is time: one message of each, in turn, since a message may take
    /// a millisecond, and one user may have thousands of connections.
    pub(super) fn serve_unidentified(&mut self) {
        if self.connections().timeout() != Some(Duration::ZERO) {
            return;
        }
        let begin = Instant::now();
        while begin.elapsed() <= MAX_SERVICE
            && let Some(token) = self.connections_mut().next_unidentified()
        {
            match token {
                LISTENER => self.contracts.frames.tenants.accept(),
                _ => self.serve(token, 1),
            }
        }
        self.connections_mut().suspend_unidentified(begin);
    }
}
