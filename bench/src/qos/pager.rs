//! The application of Nemesis's paging experiments (section 7.2), in a process of its own:
//! a stretch of 4 MiB over 16 KiB of frames, filled by demand, then gone through in order
//! again and again, while a watch thread reports every few seconds how many bytes were
//! processed.
//!
//! Rule: one transaction at a time, as there. Read-ahead needs frames to put pages in, and
//! with 4 of them has none: windows are a 64th of the frames (`selfpage`'s pager). What is
//! read is checked, so that a page that was lost is no progress.

use super::backing::{Backing, DomainWithContract};
use super::progress::{ProgressCounter, ReportedRun};
use super::write_only_driver::WriteOnlyDriver;
use crate::prelude::*;
use crate::worker;
use selfpage::{Paged, Stretch};

/// What the application does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PagerPlan {
    /// Where its pages go.
    pub backing: Backing,
    /// KiB of the stretch.
    pub stretch: u64,
    /// Its driver forgets its copies on disk: pages go out only.
    pub forgets: bool,
    /// Times that it does its work and leaves its contract first, to request another.
    pub leaves: u32,
    /// How long.
    pub run: ReportedRun,
}

/// The main function of the application.
pub fn serve(plan: &PagerPlan) -> Result<()> {
    for _ in 0..plan.leaves {
        let (owner, application) = plan.begin()?;
        application.go_through(2)?;
        drop(application);
        owner.leave()?;
    }
    let (_owner, application) = plan.begin()?;
    worker::ready()?;
    plan.run.watch(|watched| application.process(watched))?;
    // The daemon reports the charged time only while the contract is active.
    worker::linger();
    Ok(())
}

impl PagerPlan {
    /// The application under a contract of its own, its data written once. It is to be
    /// dropped first.
    fn begin(&self) -> Result<(DomainWithContract, PagingClient)> {
        let owner = self.backing.domain()?;
        let application = PagingClient {
            stretch: self.stretch(&owner)?,
            forgets: self.forgets,
        };
        application.begin();
        Ok((owner, application))
    }

    /// Its data.
    fn stretch(&self, owner: &DomainWithContract) -> Result<Stretch> {
        let stretch = owner.domain.allocate((self.stretch as usize) << 10);
        let stretch = stretch?;
        let bound = match self.forgets {
            true => stretch.bind(WriteOnlyDriver),
            false => stretch.bind(Paged),
        };
        bound?;
        Ok(stretch)
    }
}

struct PagingClient {
    stretch: Stretch,
    forgets: bool,
}

impl PagingClient {
    fn page(&self, number: usize) -> PageAt {
        // SAFETY: one of the stretch's pages, which only the main thread uses.
        unsafe { PageAt::new(self.stretch.as_ptr(), number as u64) }
    }

    /// Reads every byte, so that each page comes as zeros, and then writes every byte.
    fn begin(&self) {
        for page in 0..self.stretch.pages() {
            let first = self.stretch.base() + page * PAGE;
            for byte in first..first + PAGE {
                // SAFETY: one of the stretch's bytes.
                unsafe { std::ptr::with_exposed_provenance::<u8>(byte).read_volatile() };
            }
        }
        (0..self.stretch.pages()).for_each(|page| self.page(page).write(1));
    }

    /// Once through a page, in the round of this version.
    fn step(&self, page: usize, version: u8) -> Result<()> {
        match self.forgets {
            true => self.page(page).write(version),
            false => self.page(page).check(1)?,
        }
        Ok(())
    }

    /// Once through all pages.
    fn go_through(&self, version: u8) -> Result<()> {
        (0..self.stretch.pages()).try_for_each(|page| self.step(page, version))
    }

    fn process(&self, watched: &ProgressCounter) -> Result<()> {
        let mut version = 1;
        loop {
            // What the last round wrote must differ, or its pages need not go out.
            version = u8::wrapping_add(version, 1);
            for page in 0..self.stretch.pages() {
                self.step(page, version)?;
                if !watched.processed(PAGE as u64) {
                    return Ok(());
                }
            }
        }
    }
}
