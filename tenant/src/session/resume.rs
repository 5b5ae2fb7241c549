//! What a session does once its daemon has ended: it goes on with the next daemon.
//!
//! Before the contract has begun the next daemon is asked for the same contract. After that the
//! session presents its resume token, and the descriptors that it keeps, so that the contract goes
//! on with its frames, its channels and what was requested and not answered.

use super::{RECONNECT_PAUSE, Session, faults};
use crate::TenantError;
use crate::connection::{self, RETURN, converse, reach_next, send};
use host::seqpacket;
use protocol::{DaemonEvent, TenantRequest};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::time::Instant;

impl Session {
    /// The daemon ended before it said that the ledger is known. To the next it is a tenant's
    /// that comes back, with the bells that the ledger was made with.
    pub(super) fn start_with_next(&mut self) -> Result<(), TenantError> {
        self.connection = None;
        let begun = Instant::now();
        while begun.elapsed() < RETURN {
            match self.resume() {
                Ok(true) => return Ok(()),
                Ok(false) => std::thread::sleep(RECONNECT_PAUSE),
                Err(why) => return Err(TenantError::Refused(why)),
            }
        }
        Err(TenantError::Silent(Errno::PIPE))
    }

    /// The daemon ended before the contract has begun, and nothing came of what it gave: the
    /// next is asked for the same contract.
    pub(super) fn join_again(&mut self) -> Result<(), TenantError> {
        let next = reach_next(&self.path, Instant::now())?;
        let (connection, (say, fds)) = connection::ask(&self.path, next, &self.join)?;
        let DaemonEvent::Admitted { tenant, terms, .. } = say else {
            return Err(TenantError::OtherBuild);
        };
        if terms != self.terms {
            return Err(TenantError::Changed {
                asked: self.terms.to_string(),
                given: terms.to_string(),
            });
        }
        let [doorbell, pressure_bell, _] =
            fds.map(|fd| fd.ok_or(TenantError::Silent(Errno::MFILE)));
        (self.doorbell, self.pressure_bell) = (doorbell?, pressure_bell?);
        (self.connection, self.number) = (Some(connection), tenant);
        Ok(())
    }

    /// Connects to a daemon and presents the resume token. Returns false while there is none.
    pub(super) fn resume(&mut self) -> Result<bool, String> {
        let Ok(connection) = seqpacket::connect(&self.path) else {
            return Ok(false);
        };
        let channels = self.channels.len() as u32;
        let rejoin = TenantRequest::Rejoin {
            resume_token: self.resume_token,
            channels,
        };
        // The bells are the first daemon's, which every process of the tree has: this one is
        // given them.
        let mut fds = vec![self.doorbell.as_fd(), self.pressure_bell.as_fd()];
        fds.extend(self.ledger.iter().map(AsFd::as_fd));
        match converse(&connection, &rejoin, &fds) {
            Ok((DaemonEvent::Admitted { terms, .. }, _)) => self.terms = terms,
            Err(TenantError::Refused(why)) => return Err(why),
            _ => return Ok(false),
        }
        for (number, held) in &self.channels {
            let fds = [held.memory.as_fd(), held.server_bell.as_fd()];
            if send(&connection, &TenantRequest::Channel(*number), &fds).is_err() {
                return Ok(false);
            }
        }
        self.connection = Some(connection);
        if let Some(reservation) = self.faults {
            self.send(&faults(reservation, true));
        }
        for channel in self.closing.clone() {
            self.send(&TenantRequest::Close(channel));
        }
        for (cookie, depth) in self.opening.clone() {
            self.send(&TenantRequest::Open { depth, cookie });
        }
        if self.leaving {
            self.send(&TenantRequest::Leave);
        }
        Ok(true)
    }
}
