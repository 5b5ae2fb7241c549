//! Table 1 over the interfaces of this project.

use super::{BATCH, MANY, RANGE, shuffled, timed, touch};
use crate::page_pattern::PAGE;
use selfpage::{Contract, DirectIo, Domain, FaultKind, Handled, Physical, Rights, Stretch};
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
    pub fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let frames = (MANY + 4 * RANGE + 64) as u32;
        let build = || {
            Domain::builder()
                .frames(Contract {
                    g: frames,
                    x: frames,
                })
                .direct_io(DirectIo::PinnedOnly)
        };
        let domain = build().build()?;
        let mut small = Vec::new();
        for _ in 0..MANY {
            let stretch = domain.allocate(PAGE)?;
            stretch.bind(Physical)?;
            touch(stretch.base());
            small.push(stretch);
        }
        // Handlers are given references for good.
        let small: &'static [Stretch] = Box::leak(small.into_boxed_slice());
        let large = domain.allocate(RANGE * PAGE)?;
        large.bind(Physical)?;
        (0..RANGE).for_each(|page| touch(large.base() + page * PAGE));
        // Where the kernel cannot track writes the row says so.
        let tracked = match build().track_dirty(true).build() {
            Err(_) => None,
            Ok(domain) => {
                let stretch = domain.allocate(MANY * PAGE)?;
                stretch.bind(Physical)?;
                (0..MANY).for_each(|page| touch(stretch.base() + page * PAGE));
                stretch.mark_clean(0..MANY)?;
                (0..MANY)
                    .step_by(2)
                    .for_each(|page| touch(stretch.base() + page * PAGE));
                Some((domain, stretch))
            }
        };
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
        timed(BATCH, || {
            for _ in 0..BATCH {
                let page = rng.usize(..MANY);
                let dirty = stretch.trans(page).ok().and_then(|t| t.dirty);
                assert_eq!(dirty, Some(page.is_multiple_of(2)), "page {page}");
            }
        })
    }

    pub fn protect_one(&self, rng: &mut fastrand::Rng) -> f64 {
        timed(2 * BATCH, || {
            for _ in 0..BATCH {
                let stretch = &self.small[rng.usize(..MANY)];
                let _ = stretch.protect(READ_ONLY());
                let _ = stretch.protect(Rights::ALL);
            }
        })
    }

    pub fn protect_range(&self) -> f64 {
        timed(2 * BATCH, || {
            for _ in 0..BATCH {
                let _ = self.large.protect(READ_ONLY());
                let _ = self.large.protect(Rights::ALL);
            }
        })
    }

    pub fn idempotent(&self) -> f64 {
        timed(BATCH, || {
            for _ in 0..BATCH {
                let _ = std::hint::black_box(&self.large).protect(Rights::ALL);
            }
        })
    }

    pub fn trap(&self) -> f64 {
        let Ok(fresh) = self.domain.allocate(RANGE * PAGE) else {
            return f64::NAN;
        };
        if fresh.bind(Physical).is_err() {
            return f64::NAN;
        }
        timed(RANGE, || {
            (0..RANGE).for_each(|page| touch(fresh.base() + page * PAGE))
        })
    }

    pub fn appel1(&self, rng: &mut fastrand::Rng) -> f64 {
        for (i, stretch) in self.small.iter().enumerate() {
            let small = self.small;
            stretch.override_fault(
                FaultKind::Protection,
                Some(Box::new(move |_| {
                    let other = &small[NEXT.load(Ordering::Relaxed)];
                    let done =
                        small[i].protect(Rights::ALL).is_ok() && other.protect(READ_ONLY()).is_ok();
                    if done {
                        Handled::Resume
                    } else {
                        Handled::Default
                    }
                })),
            );
        }
        let mut at = rng.usize(..MANY);
        let _ = self.small[at].protect(READ_ONLY());
        let time = timed(BATCH, || {
            for _ in 0..BATCH {
                let next = (at + 1 + rng.usize(..MANY - 1)) % MANY;
                NEXT.store(next, Ordering::Relaxed);
                touch(self.small[at].base());
                at = next;
            }
        });
        self.small
            .iter()
            .for_each(|s| s.override_fault(FaultKind::Protection, None));
        let _ = self.small[at].protect(Rights::ALL);
        time
    }

    pub fn appel2(&self, rng: &mut fastrand::Rng) -> f64 {
        let order = shuffled(rng);
        timed(RANGE, || {
            let _ = self.large.unmap(0..RANGE);
            for page in order {
                touch(self.large.base() + page * PAGE);
            }
        })
    }
}
