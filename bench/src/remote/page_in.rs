//! The worker of an arm that needs a process of its own: a program that pages, or the remote client's
//! user.

use super::Amount;
use super::channel::ChannelReader;
use super::source::{Figures, measure, order};
use crate::prelude::*;
use crate::process::joined;
use std::net::SocketAddr;

/// An access that took less found its page.
const FOUND_NS: u64 = 1_000;

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemotePlan {
    /// Whether it runs under `selfpage run`, or uses a remote client itself.
    pub is_paged: bool,
    /// The paging server.
    pub server: SocketAddr,
    /// Pages of data.
    pub pages: u64,
    /// Accesses, of all threads together.
    pub accesses: u64,
    /// Threads that access pages, or requests under way.
    pub threads: u64,
    /// Makes the order.
    pub seed: u64,
}

/// The main function of a worker.
pub fn serve(plan: &RemotePlan) -> Result<()> {
    let amount = Amount {
        pages: plan.pages,
        accesses: plan.accesses,
        depth: plan.threads as usize,
        seed: plan.seed,
        is_stopped: false,
    };
    if !plan.is_paged {
        let mut reader = ChannelReader::connect(plan.server, plan.pages)?;
        ready()?;
        return reply(&measure(&mut reader, amount)?);
    }
    let memory = WorkerMemory::new(&MemoryKind::Paged, plan.pages, 0)?;
    let start = memory.start().expose_provenance();
    for page in 0..plan.pages {
        page_at(start, page).write(1);
    }
    ready()?;
    let amount = Amount {
        accesses: plan.accesses / plan.threads,
        ..amount
    };
    let read = |thread: u64| {
        // The first part brings about the steady state.
        let mut times = Vec::with_capacity(amount.accesses as usize);
        for part in [2 * thread, 2 * thread + 1] {
            times.clear();
            for page in order(amount, part) {
                let begun = Instant::now();
                page_at(start, page).probe(1)?;
                times.push(begun.elapsed().as_nanos() as u64);
            }
        }
        Ok(times)
    };
    let begun = Instant::now();
    let times = std::thread::scope(|scope| {
        let read = &read;
        let threads = (0..plan.threads).map(|thread| scope.spawn(move || read(thread)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })?
    .concat();
    let elapsed = begun.elapsed().as_secs_f64() * 1e6;
    let faulted: Vec<u64> = times.iter().copied().filter(|ns| *ns >= FOUND_NS).collect();
    // Both parts took the time, and as many of each fault.
    let a_fault = elapsed / (2 * faulted.len().max(1)) as f64;
    reply(&Figures::of(faulted, Some(a_fault)))
}

/// A page of the memory at `start`.
fn page_at(start: usize, page: u64) -> PageAt {
    let base = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the memory outlives the work, whose pages nothing writes once they are filled.
    unsafe { PageAt::new(base, page) }
}
