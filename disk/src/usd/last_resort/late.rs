//! Parts that wait for the inner transport for longer than it is to take.
//!
//! | late | |
//! |---|---|
//! | a write | is given up there, and goes to the file |
//! | a read | waits on, since nothing else has its pages; the scheduler is told ([`Transport::next_waiting`]) |
//!
//! A read that is late shows an inner transport that is silent, until something comes from it: reads that begin meanwhile are
//! late at once. Else as many as fill the scheduler's bound would keep the file idle, and those after them again.
//!
//! [`Transport::next_waiting`]: crate::usd::Transport::next_waiting

use super::health::WRITE_DEADLINE;
use super::transport::LastResort;
use crate::time::Time;
use crate::usd::transport::PartId;
use iochannel::Op;
use rustix::io::Errno;

/// What is known of reads that are late.
#[derive(Debug, Default)]
pub(super) struct LateReads {
    /// Reads that are late, of which the scheduler was not told.
    pub untold: usize,
    is_silent: bool,
}

impl LateReads {
    /// A run of pages has ended at the inner transport. An error may be its own, without an answer.
    pub fn on_inner_ended(&mut self, result: i32) {
        self.is_silent &= result < 0;
    }
}

impl LastResort {
    /// A part waits for the inner transport from now on.
    pub(super) fn begin_waiting(&mut self, now: Time, at: usize) {
        let Some(part) = &mut self.parts[at] else {
            return;
        };
        if part.op == Op::Read && self.late_reads.is_silent {
            return self.set_late(at);
        }
        part.until = now + WRITE_DEADLINE;
        self.late_at = self.late_at.min(part.until);
    }

    fn set_late(&mut self, at: usize) {
        if let Some(part) = &mut self.parts[at] {
            part.until = Time::NEVER;
            part.is_late = true;
            self.late_reads.untold += 1;
        }
    }

    /// The next late read that the scheduler was not told of.
    pub(super) fn next_late(&mut self) -> Option<PartId> {
        if self.late_reads.untold == 0 {
            return None;
        }
        let mut parts = self.parts.iter_mut().flatten();
        let part = parts.find(|part| part.is_late)?;
        part.is_late = false;
        self.late_reads.untold -= 1;
        Some(part.id)
    }

    /// Gives up writes that are late, as far as the file has room, and notes reads that are.
    pub(super) fn check_late(&mut self, now: Time) {
        if now < self.late_at {
            return;
        }
        for at in 0..self.parts.len() {
            let late = self.parts[at].as_ref().filter(|part| now >= part.until);
            match late.map(|part| part.op) {
                Some(Op::Read) => {
                    self.late_reads.is_silent = true;
                    self.set_late(at);
                }
                Some(Op::Write) => self.give_up_late(now, at),
                None => {}
            }
        }
        let times = self.parts.iter().flatten().map(|part| part.until);
        self.late_at = times.min().unwrap_or(Time::NEVER);
    }

    fn give_up_late(&mut self, now: Time, at: usize) {
        let is_claimed = self.claim_all(at);
        let Some(part) = &mut self.parts[at] else {
            return;
        };
        part.is_given_up = is_claimed;
        if !is_claimed {
            part.until = now + WRITE_DEADLINE;
            return;
        }
        part.until = Time::NEVER;
        self.health
            .on_failed(part.new_at_inner, now, Errno::TIMEDOUT);
        let id = PartId {
            client: at as u32,
            transaction: 0,
        };
        self.inner.give_up(now, id);
    }
}
