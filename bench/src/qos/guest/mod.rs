//! One of two programs beside each other, in a process of its own: the victim, whose
//! accesses are timed, or the neighbour, which pages as hard as it can.
//!
//! It receives its orders as lines, so that the same process, with the same pages in memory,
//! is measured alone and beside the other.
//!
//! | file | what it is |
//! |---|---|
//! | `order` | its orders |
//! | `work` | what it does with its pages |
//! | `latency` | when accesses are due, and how long they took |

mod latency;
mod order;
mod work;

pub use latency::{Done, Latency, latencies};
pub use order::Order;

use super::backing::{Backing, Housed};
use crate::ExperimentError;
use crate::contents::PAGE;
use crate::error::while_doing;
use crate::memory::{Kind, Memory};
use crate::worker::READY;
use selfpage::{Domain, Paged, Stretch};
use serde::Serialize;
use std::io::{BufRead, Write};
use work::Guest;

/// What a guest is.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Which memory, where it is not a domain's of its own.
    #[arg(long, default_value = "anonymous")]
    pub memory: Kind,
    /// MiB of it.
    #[arg(long)]
    pub mib: u64,
    /// Where the pages of a domain of its own go.
    #[command(flatten)]
    pub backing: Backing,
}

/// The main function of a guest.
pub fn serve(plan: &Plan) -> Result<(), ExperimentError> {
    let pages = (plan.mib << 20) / PAGE as u64;
    let place = Place::new(plan, pages)?;
    // SAFETY: the place has so many pages, which are the guest's alone, and outlives it.
    let guest = unsafe { Guest::new(place.start(), pages) };
    println!("{READY}");
    let mut orders = std::io::stdin().lock().lines().map_while(Result::ok);
    while let Some(line) = orders.next() {
        match line.parse()? {
            Order::Fill => answer(&guest.fill())?,
            Order::Closed(during) => answer(&guest.closed(during)?)?,
            Order::Open { during, rate, seed } => answer(&guest.open(during, rate, seed)?)?,
            Order::Roam(threads) => {
                answer(&guest.work(threads, false, || until_rest(&mut orders, &place))?)?
            }
            Order::Churn(threads) => {
                answer(&guest.work(threads, true, || until_rest(&mut orders, &place))?)?
            }
            Order::Asked => answer(&place.asked())?,
            Order::Claim(pages) => answer(&guest.claim(place.domain()?, pages)?)?,
            Order::Rest => return Err(ExperimentError::Worker("order to rest at rest".into())),
        }
    }
    Ok(())
}

/// Answers queries until the order to rest arrives or the parent has exited.
fn until_rest(orders: &mut impl Iterator<Item = String>, place: &Place) {
    let asks = |line: &String| matches!(line.parse(), Ok(Order::Asked));
    while orders.next().as_ref().is_some_and(asks) && answer(&place.asked()).is_ok() {}
}

/// Where a guest's pages are. Dropped from the top.
enum Place {
    Memory(Memory),
    Stretch(Stretch, Housed),
}

impl Place {
    fn new(plan: &Plan, pages: u64) -> Result<Self, ExperimentError> {
        if !plan.backing.is_some() {
            return Ok(Self::Memory(Memory::new(&plan.memory, pages, 0)?));
        }
        let failed = |why: selfpage::StretchError| ExperimentError::Worker(why.to_string());
        let housed = plan.backing.domain()?;
        let stretch = housed
            .domain
            .allocate(pages as usize * PAGE)
            .map_err(failed)?;
        stretch.bind(Paged).map_err(failed)?;
        Ok(Self::Stretch(stretch, housed))
    }

    fn domain(&self) -> Result<(&Stretch, &Domain), ExperimentError> {
        match self {
            Self::Stretch(stretch, housed) => Ok((stretch, &housed.domain)),
            Self::Memory(_) => Err(ExperimentError::Worker("has no domain".into())),
        }
    }

    /// Number of revocations.
    fn asked(&self) -> u64 {
        match self {
            Self::Stretch(_, housed) => housed.asked(),
            Self::Memory(_) => 0,
        }
    }

    fn start(&self) -> *mut u8 {
        match self {
            Self::Memory(memory) => memory.start(),
            Self::Stretch(stretch, _) => stretch.as_ptr(),
        }
    }
}

fn answer(value: &impl Serialize) -> Result<(), ExperimentError> {
    let line = serde_json::to_string(value).map_err(|e| ExperimentError::Worker(e.to_string()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(while_doing("answer"))
}
