//! What the client does by itself under the schedule: copies and moves of objects, parities, parts that are made again.
//!
//! All of it is runs of pages that are read at some servers and written at another. The disk's thread starts a run when
//! Atropos names it ([`disk::usd::BackgroundWork`]), by a contract of its own beside the tree's ([`CONTRACT`]). Rule: one
//! run of each job is under way at a time, so a page-in waits for two at most, at the client, on a link and at a server. While a
//! request of the tree waits for a copy, or for the end of its stripe, runs follow each other.

use crate::copying;
use crate::stripe_job;
use crate::transport::RemoteTransport;
use disk::atropos::DiskContract;
use disk::time::{Nanos, Time};
use disk::usd::BackgroundWork;
use remote_wire::MAX_RUN;
use std::collections::BTreeMap;
use wired::PAGE;

/// Pages of a run.
const RUN: usize = 8;

/// A tenth of the link, and the time in which the tree has no request. The period is a fifth of the tree's, so a copy gets
/// its slice five times in each of the tree's periods.
pub const CONTRACT: DiskContract =
    DiskContract::new(Nanos::millis(2), Nanos::millis(20)).with_slack();

/// What a run is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Copy,
    Stripe,
}

/// The job whose turn it was last.
#[derive(Debug, Default)]
pub struct Background {
    last: Option<Job>,
    /// Copies and stripes that are whole.
    whole: u64,
    /// The most pages of each job since then, by what it makes: one that begins anew makes no progress until it
    /// comes further.
    most_pages: BTreeMap<(Job, [usize; 2]), u64>,
    /// When a job made progress last.
    pub last_progress: Time,
}

impl Background {
    fn on_whole(&mut self, whole: u64, now: Time) {
        if whole > self.whole {
            (self.whole, self.last_progress) = (whole, now);
            self.most_pages.clear();
        }
    }

    fn on_pages(&mut self, job: Job, makes: [usize; 2], pages: u64, now: Time) {
        let most_pages = self.most_pages.entry((job, makes)).or_default();
        if pages > *most_pages {
            (*most_pages, self.last_progress) = (pages, now);
        }
    }
}

/// Notes how far the jobs have come.
pub fn note_progress(transport: &mut RemoteTransport, now: Time) {
    let whole = transport.progress.copies_made() + transport.progress.stripes_made();
    let background = &mut transport.background;
    background.on_whole(whole, now);
    if let Some(copy) = &transport.copy {
        background.on_pages(Job::Copy, copy.makes(), copy.pages(), now);
    }
    if let Some(stripe) = &transport.stripes.job {
        background.on_pages(Job::Stripe, [stripe.stripe, 0], stripe.pages(), now);
    }
}

/// The job whose turn it is.
fn next(transport: &RemoteTransport) -> Option<Job> {
    let jobs = [
        (Job::Copy, copying::awaits_run(transport)),
        (Job::Stripe, stripe_job::awaits_run(transport)),
    ];
    let ready = jobs.iter().filter(|(_, is_ready)| *is_ready);
    let last = transport.background.last;
    ready
        .map(|(job, _)| *job)
        .max_by_key(|job| Some(*job) != last)
}

/// Returns true if a request of the tree waits for a copy, or for the end of a stripe. One that waits for a server gains
/// nothing by faster copies.
fn is_awaited(transport: &RemoteTransport) -> bool {
    transport.requests.waiting().any(|segment| {
        transport.awaits_stripe(&segment) || transport.objects.at(segment.object).readable() == 0
    })
}

/// Most pages of the next run: what a request of the tree waits for is done in fewer steps.
pub fn run_pages(transport: &RemoteTransport) -> u64 {
    match is_awaited(transport) {
        true => MAX_RUN as u64,
        false => RUN as u64,
    }
}

/// The next run, if it may be started.
pub fn work(transport: &RemoteTransport) -> Option<BackgroundWork> {
    let run = (run_pages(transport) * PAGE as u64) as u32;
    let (read, written) = match next(transport)? {
        Job::Copy => (1, 1),
        Job::Stripe => stripe_job::counts(transport),
    };
    Some(BackgroundWork {
        read: run * read as u32,
        written: run * written as u32,
        is_awaited: is_awaited(transport),
    })
}

/// Starts a run.
pub fn start(transport: &mut RemoteTransport, now: Time) {
    let job = next(transport);
    transport.background.last = job;
    match job {
        Some(Job::Copy) => copying::begin_run(transport, now),
        Some(Job::Stripe) => stripe_job::begin_run(transport, now),
        None => {}
    }
}

/// Returns true while a run is under way, and no other job has one: a copy may wait for the object that a stripe is to
/// give back, so neither waits for the other.
pub fn is_under_way(transport: &RemoteTransport) -> bool {
    if next(transport).is_some() {
        return false;
    }
    let has_copy = transport.copy.is_some() && !copying::awaits_run(transport);
    let has_stripe = transport.stripes.job.is_some() && !stripe_job::awaits_run(transport);
    has_copy || has_stripe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_begins_anew_is_no_progress_until_it_comes_further() {
        let mut background = Background::default();
        let mut advances = |whole, object, pages, now| {
            background.on_whole(whole, Time(now));
            background.on_pages(Job::Copy, [object, 1], pages, Time(now));
            background.last_progress == Time(now)
        };
        assert!(advances(0, 3, 8, 1) && advances(0, 3, 64, 2));
        assert!(!advances(0, 3, 0, 3) && !advances(0, 3, 64, 4));
        // Another object's, after one that failed late.
        assert!(advances(0, 4, 8, 5));
        assert!(advances(1, 3, 0, 6) && advances(1, 3, 8, 7));
    }
}
