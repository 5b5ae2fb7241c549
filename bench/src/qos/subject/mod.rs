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

pub use latency::{Done, Latency, latencies, schedule, wait_until};
pub use order::Order;

use super::backing::{Backing, DomainWithContract};
use crate::prelude::*;
use crate::worker::{READY, orders};
use selfpage::{Domain, Paged, Stretch};
use work::SubjectWorkload;

/// What a subject is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubjectPlan {
    /// Which memory, where it is not a domain's of its own.
    pub memory: MemoryKind,
    /// MiB of it.
    pub mib: u64,
    /// Where the pages of a domain of its own go.
    pub backing: Backing,
}

impl SubjectPlan {
    /// Starts one whose pages, so many MiB, are in a domain of its own.
    pub fn start(mib: u64, backing: Backing) -> Result<Worker> {
        let memory = MemoryKind::Anonymous;
        WorkerPlan::Subject(Self {
            memory,
            mib,
            backing,
        })
        .start()
    }
}

/// The main function of a subject.
pub fn serve(plan: &SubjectPlan) -> Result<()> {
    let pages = (plan.mib << 20) / PAGE as u64;
    let memory = SubjectMemory::new(plan, pages)?;
    // SAFETY: the memory has so many pages, which are the subject's alone, and outlives it.
    let subject = unsafe { SubjectWorkload::new(memory.start(), pages) };
    println!("{READY}");
    let mut orders = orders();
    while let Some(order) = orders.next() {
        let order = order?;
        match order {
            Order::Fill => reply(&subject.fill())?,
            Order::Closed(during) => reply(&subject.closed(during)?)?,
            Order::Open { during, rate, seed } => reply(&subject.open(during, rate, seed)?)?,
            Order::Roam(threads) | Order::Churn(threads) => {
                let changes = matches!(order, Order::Churn(_));
                reply(&subject.work(threads, changes, || until_rest(&mut orders, &memory))?)?
            }
            Order::Revocations => reply(&memory.revocations())?,
            Order::Claim(pages) => reply(&subject.claim(memory.domain()?, pages)?)?,
            Order::Rest => bail!("order to rest at rest"),
        }
    }
    Ok(())
}

/// Answers queries until the order to rest arrives or the parent has exited.
fn until_rest(orders: &mut impl Iterator<Item = Result<Order>>, memory: &SubjectMemory) {
    while let Some(Ok(Order::Revocations)) = orders.next()
        && reply(&memory.revocations()).is_ok()
    {}
}

/// Where a subject's pages are. Dropped from the top.
enum SubjectMemory {
    Kernel(WorkerMemory),
    Stretch(Stretch, DomainWithContract),
}

impl SubjectMemory {
    fn new(plan: &SubjectPlan, pages: u64) -> Result<Self> {
        if !plan.backing.is_some() {
            return Ok(Self::Kernel(WorkerMemory::new(&plan.memory, pages, 0)?));
        }
        let owner = plan.backing.domain()?;
        let stretch = owner.domain.allocate(pages as usize * PAGE)?;
        stretch.bind(Paged)?;
        Ok(Self::Stretch(stretch, owner))
    }

    fn domain(&self) -> Result<(&Stretch, &Domain)> {
        match self {
            Self::Stretch(stretch, owner) => Ok((stretch, &owner.domain)),
            Self::Kernel(_) => Err(anyhow!("has no domain")),
        }
    }

    /// Number of revocations.
    fn revocations(&self) -> u64 {
        match self {
            Self::Stretch(_, owner) => owner.revocations(),
            Self::Kernel(_) => 0,
        }
    }

    fn start(&self) -> *mut u8 {
        match self {
            Self::Kernel(memory) => memory.start(),
            Self::Stretch(stretch, _) => stretch.as_ptr(),
        }
    }
}
