//! New images: each gets a domain, once one is free.
//!
//! An image joins before the resources of the previous image are reclaimed, and a process that was just reaped may have
//! its domain for some milliseconds more. So an image that finds no free domain, or no descriptors, waits: after `exec`
//! the program cannot return to the previous image.

use crate::descriptor_reserve;
use frames::{Contract, DomainId, Ledger};
use host::fd_reaper::PeerFd;
use link::MIN_FRAMES;
use rustix::process::Pid;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long an image waits for the domain and the descriptors of a process that has ended.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// A process that has sent its first message, as a new image.
pub(super) struct NewImage {
    pub connection: PeerFd,
    pub pid: Pid,
    pub program: Pid,
    pub since: Instant,
}

/// The images that wait, in the order of their arrival.
#[derive(Default)]
pub(super) struct NewImages(VecDeque<NewImage>);

impl NewImages {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn push(&mut self, image: NewImage) {
        self.0.push_back(image);
    }

    /// The first image, with a domain that has its guarantee, or the refusal. `None` while the image waits.
    pub fn admit(
        &mut self,
        ledger: &Ledger,
        frames: u32,
    ) -> Option<(NewImage, Result<DomainId, String>)> {
        let is_late = self.0.front()?.since.elapsed() >= MAX_WAIT;
        if !is_late && !descriptor_reserve::has_room_for_image() {
            return None;
        }
        let contract = Contract {
            g: MIN_FRAMES,
            x: frames,
        };
        let domain = match ledger.admit(contract) {
            Err(_) if !is_late => return None,
            Err(refusal) => Err(format!(
                "one more process may not page: {refusal}. Each process of the tree is guaranteed {MIN_FRAMES} \
                 frames: give `selfpage run` more with --frames, or start fewer processes"
            )),
            Ok(domain) => Ok(domain),
        };
        Some((self.0.pop_front()?, domain))
    }
}
