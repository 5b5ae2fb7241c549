//! Scrubs the swap files of new tenants, without taking the disk from those who have contracts.
//!
//! A swap file may hold another tenant's data, so it is overwritten before it is given out, in
//! disk time of the daemon's own ([`crate::zero_writer`]), however many files wait for it and however
//! slow the disk is. While the disk is otherwise idle, scrubbing takes all of it.
//!
//! Rule: one thread scrubs, a step of each file in turn.

use crate::jobs::{JobResult, JobSender};
use crate::urgent;
use crate::zero_writer::{STEP, ZeroWriter};
use disk::swapfs::{Device, Scrub, ScrubError};
use protocol::TenantNumber;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// A scrubbed file, or why it is not.
pub struct ScrubDone {
    /// The work, to be handed back to the filesystem.
    pub scrub: Scrub<Device>,
    /// What came of it.
    pub result: Result<(), ScrubError>,
}

type Job = (TenantNumber, Box<Scrub<Device>>);

/// The thread that scrubs. It ends when this is dropped, after the step in hand.
pub struct Scrubber(Sender<Job>);

impl Scrubber {
    /// A thread with nothing to do; `notifier` receives each result.
    pub(crate) fn start(writer: ZeroWriter, notifier: JobSender) -> std::io::Result<Self> {
        let (sender, work) = channel();
        std::thread::Builder::new()
            .name("selfpage-scrub".into())
            .spawn(move || {
                urgent::leave();
                serve(&work, writer, &notifier);
            })?;
        Ok(Self(sender))
    }

    /// Wipes a tenant's file: [`JobResult::Scrubbed`] follows.
    pub fn scrub(&self, tenant: TenantNumber, scrub: Scrub<Device>) {
        // The thread lasts as long as this.
        let _ = self.0.send((tenant, Box::new(scrub)));
    }
}

fn serve(work: &Receiver<Job>, mut writer: ZeroWriter, notifier: &JobSender) {
    let mut files = VecDeque::new();
    loop {
        let more = match files.is_empty() {
            true => work.recv().map_err(|_| TryRecvError::Disconnected),
            false => work.try_recv(),
        };
        match more {
            Ok(one) => {
                files.push_back(one);
                continue;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        let Some((tenant, mut scrub)) = files.pop_front() else {
            continue;
        };
        let result = scrub.step(STEP, |at, len| writer.write(at, len)).map(drop);
        if result.is_err() || scrub.is_done() {
            let scrub = *scrub;
            notifier.send(JobResult::Scrubbed(
                tenant,
                Box::new(ScrubDone { scrub, result }),
            ));
        } else {
            files.push_back((tenant, scrub));
        }
    }
}
