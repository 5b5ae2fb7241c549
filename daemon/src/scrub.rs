//! Scrubs the swap files of new tenants, without taking the disk from those who have contracts.
//!
//! A swap file may hold another tenant's data, so it is overwritten before its tenant may read it, in
//! disk time of the daemon's own ([`crate::zero_writer`]), however many files wait for that and however
//! slow the disk is. While the disk is otherwise idle, scrubbing takes all of its time.
//!
//! Rule: one thread scrubs, a step of each file in turn.

use crate::jobs::{JobResult, JobSender};
use crate::urgent;
use crate::zero_writer::{STEP, ZeroWriter};
use disk::swapfs::{Device, Scrub, ScrubError};
use protocol::TenantNumber;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// The end of the work on a swap file.
pub struct ScrubDone {
    /// The work, which is handed back to the filesystem.
    pub scrub: Scrub<Device>,
    /// Its result.
    pub result: Result<(), ScrubError>,
}

type Job = (TenantNumber, Box<Scrub<Device>>);

/// The thread that scrubs. It ends after its current step when this is dropped.
pub struct Scrubber(Sender<Job>);

impl Scrubber {
    /// Starts the thread; `notifier` sends each result to the loop.
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

    /// Scrubs a tenant's file: [`JobResult::Scrubbed`] follows.
    pub fn scrub(&self, tenant: TenantNumber, scrub: Scrub<Device>) {
        // This cannot fail: the thread receives for as long as this exists.
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
