//! Admission of new images: each program that begins one gets a domain, once there is one.
//!
//! An image joins before what the image before it held is back, and a process that a program has just reaped may have its domain
//! for some milliseconds more. So an image that finds no domain waits: past `exec` there is no way back for it.

use super::Supervisor;
use super::admission::joined_or_refused;
use crate::TreeEvent;
use crate::processes::PagedProcess;
use frames::{Contract, DomainId};
use host::fd_reaper::PeerFd;
use link::MIN_FRAMES;
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// How long an image waits for the domain of a process that has ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process that has sent its first message, as a new image.
pub(super) struct NewImage {
    connection: PeerFd,
    pid: Pid,
    program: Pid,
    since: Instant,
}

impl NewImage {
    pub fn new(connection: PeerFd, pid: Pid, program: Pid) -> Self {
        Self {
            connection,
            pid,
            program,
            since: Instant::now(),
        }
    }
}

impl Supervisor {
    /// A program begins a new image. The pager process of the one before is ended, and what it
    /// held comes back with its end.
    pub(super) fn end_image_of(&mut self, program: Pid, happened: &mut Vec<TreeEvent>) {
        let Some(slot) = self.members.of(program).map(PagedProcess::slot) else {
            return;
        };
        // Its lifeline, sent before that image ran: unread, it would kill the program with it.
        self.at_member(slot, happened);
        let Some(before) = self.members.get(slot) else {
            return;
        };
        match before.pid == program {
            true => self.retire(slot, happened),
            false => before.end_image(),
        }
    }

    /// Lets an image in, refuses it, or has it wait behind those that came before it.
    pub(super) fn admit_image(&mut self, image: NewImage, happened: &mut Vec<TreeEvent>) {
        let is_late = image.since.elapsed() >= PATIENCE;
        if is_late || self.waiting.is_empty() {
            match self.admit() {
                Err(_) if !is_late => (),
                domain => {
                    let (pid, program) = (image.pid, image.program);
                    let connection = &image.connection;
                    let slot = domain.and_then(|it| self.enter(connection, pid, program, it));
                    return happened.push(joined_or_refused(connection, program, slot));
                }
            }
        }
        self.waiting.push(image);
    }

    /// Tries again for those that wait.
    pub(super) fn admit_waiting(&mut self, happened: &mut Vec<TreeEvent>) {
        for image in std::mem::take(&mut self.waiting) {
            self.admit_image(image, happened);
        }
    }

    /// A domain with its guarantee, or why not.
    fn admit(&mut self) -> Result<DomainId, String> {
        let contract = Contract {
            g: MIN_FRAMES,
            x: self.settings.frames,
        };
        self.ledger.admit(contract).map_err(|refusal| {
            format!(
                "one more process may not page: {refusal}. Each process of the tree is guaranteed {MIN_FRAMES} \
                 frames: give `selfpage run` more with --frames, or start fewer processes"
            )
        })
    }
}
