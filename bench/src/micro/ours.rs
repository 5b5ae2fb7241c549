//! Table 1 over the interfaces of this project.

use super::{MANY, RANGE, batch, shuffled, timed, touch, touch_all};
use crate::prelude::*;
use selfpage::{Contract, DirectIo, Domain, Fault, FaultKind, Handled, Physical, Rights, Stretch};
use std::sync::atomic::{AtomicUsize, Ordering};

const READ_ONLY: fn() -> Rights = || Rights::READ | Rights::META;

/// Over the interfaces of this project.
pub struct OursArm {
    domain: Domain,
    small: &'static [Stretch],
    large: Stretch,
    tracked: Option<(Domain, Stretch)>,
}

/// Which small stretch an appel1 handler protects next.
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl OursArm {
    pub fn new() -> Result<Self> {
        let frames = (MANY + 4 * RANGE + 64) as u32;
        let contract = Contract::from(frames);
        let build = || {
            Domain::builder()
                .frames(contract)
                .direct_io(DirectIo::PinnedOnly)
        };
        let domain = build().build()?;
        let small = (0..MANY)
            .map(|_| backed(&domain, 1))
            .collect::<Result<Vec<_>>>()?;
        let large = backed(&domain, RANGE)?;
        // Where the kernel cannot track writes the row says so.
        let tracked = match build().track_dirty(true).build() {
            Err(_) => None,
            Ok(domain) => {
                let stretch = backed(&domain, MANY)?;
                stretch.mark_clean(0..MANY)?;
                touch_all(stretch.base(), (0..MANY).step_by(2));
                Some((domain, stretch))
            }
        };
        // Handlers are given references for good.
        let small = Box::leak(small.into_boxed_slice());
        Ok(Self {
            domain,
            small,
            large,
            tracked,
        })
    }

    pub fn dirty(&self, rng: &mut fastrand::Rng) -> f64 {
        let Some((_, stretch)) = &self.tracked else {
            return f64::NAN;
        };
        batch(1, || {
            let page = rng.usize(..MANY);
            let dirty = stretch.trans(page).ok().and_then(|t| t.dirty);
            assert_eq!(dirty, Some(page.is_multiple_of(2)), "page {page}");
        })
    }

    pub fn protect_one(&self, rng: &mut fastrand::Rng) -> f64 {
        batch(2, || {
            let stretch = &self.small[rng.usize(..MANY)];
            let _ = stretch.protect(READ_ONLY());
            let _ = stretch.protect(Rights::ALL);
        })
    }

    pub fn protect_range(&self, _: &mut fastrand::Rng) -> f64 {
        batch(2, || {
            let _ = self.large.protect(READ_ONLY());
            let _ = self.large.protect(Rights::ALL);
        })
    }

    pub fn idempotent(&self, _: &mut fastrand::Rng) -> f64 {
        batch(1, || {
            _ = std::hint::black_box(&self.large).protect(Rights::ALL)
        })
    }

    pub fn trap(&self, _: &mut fastrand::Rng) -> f64 {
        let fresh = self.domain.allocate(RANGE * PAGE).ok();
        let Some(fresh) = fresh.filter(|fresh| fresh.bind(Physical).is_ok()) else {
            return f64::NAN;
        };
        timed(RANGE, || touch_all(fresh.base(), 0..RANGE))
    }

    pub fn appel1(&self, rng: &mut fastrand::Rng) -> f64 {
        let small = self.small;
        for stretch in small {
            let handler = Box::new(|_: &Fault| {
                let other = &small[NEXT.load(Ordering::Relaxed)];
                let done = stretch
                    .protect(Rights::ALL)
                    .and_then(|_| other.protect(READ_ONLY()));
                done.map_or(Handled::Default, |_| Handled::Resume)
            });
            stretch.override_fault(FaultKind::Protection, Some(handler));
        }
        let mut at = rng.usize(..MANY);
        let _ = small[at].protect(READ_ONLY());
        let time = batch(1, || {
            let next = (at + 1 + rng.usize(..MANY - 1)) % MANY;
            NEXT.store(next, Ordering::Relaxed);
            touch(small[at].base());
            at = next;
        });
        small
            .iter()
            .for_each(|s| s.override_fault(FaultKind::Protection, None));
        let _ = small[at].protect(Rights::ALL);
        time
    }

    pub fn appel2(&self, rng: &mut fastrand::Rng) -> f64 {
        let order = shuffled(rng);
        timed(RANGE, || {
            let _ = self.large.unmap(0..RANGE);
            touch_all(self.large.base(), order);
        })
    }
}

/// A physical stretch whose pages are all there.
fn backed(domain: &Domain, pages: usize) -> Result<Stretch> {
    let stretch = domain.allocate(pages * PAGE)?;
    stretch.bind(Physical)?;
    touch_all(stretch.base(), 0..pages);
    Ok(stretch)
}
