//! A space's side of a shared budget: what it takes, gives back and requests.
//!
//! All of it are a few atomic operations and a wake-up: a miss runs in a signal handler.

use crate::vtlb_budget::{GUARANTEED, NOTHING, Place, VtlbBudget, choose_donor};
use std::sync::atomic::Ordering;
use wired::{clock, futex};

/// A space with a place in a budget, which its revocation thread owns.
pub(crate) struct BudgetMember {
    budget: VtlbBudget,
    place: usize,
    /// Pages beyond the guaranteed ones.
    taken: u32,
}

impl BudgetMember {
    pub(crate) fn new(budget: VtlbBudget, place: usize) -> Self {
        Self {
            budget,
            place,
            taken: 0,
        }
    }

    fn place(&self) -> &Place {
        &self.budget.places()[self.place]
    }

    /// Page-table pages that the space may have now.
    pub(crate) fn bound(&self) -> usize {
        GUARANTEED + self.taken as usize
    }

    /// The most that it could have.
    pub(crate) fn most(&self) -> usize {
        GUARANTEED + self.budget.pool()
    }

    /// Takes a page from the pool. Returns false where the pool is dry.
    ///
    /// The page is in the space's count before the sum is made. Of two spaces that take the last
    /// page at once the later one sees both counts; each may see both, and then neither has it.
    pub(crate) fn take(&mut self) -> bool {
        self.set_taken(self.taken + 1);
        if self.budget.taken() <= self.budget.pool() as u64 {
            return true;
        }
        self.set_taken(self.taken - 1);
        false
    }

    /// Gives back to the pool what exceeds `pages`.
    pub(crate) fn keep(&mut self, pages: usize) {
        let needed = pages.saturating_sub(GUARANTEED) as u32;
        if needed < self.taken {
            self.set_taken(needed);
        }
    }

    fn set_taken(&mut self, pages: u32) {
        self.taken = pages;
        self.place().taken.store(pages, Ordering::SeqCst);
    }

    /// Publishes when the oldest entry that the space can give back was entered.
    pub(crate) fn publish(&self, oldest: Option<u64>) {
        self.place()
            .oldest
            .store(oldest.unwrap_or(NOTHING), Ordering::Release);
    }

    /// Requests `pages` of the space with the oldest entry, where [`choose_donor`] names one.
    pub(crate) fn request(&self, pages: u32, own: Option<u64>) -> bool {
        self.request_at(clock::now(), pages, own)
    }

    fn request_at(&self, now: u64, pages: u32, own: Option<u64>) -> bool {
        let places = self.budget.places();
        let others = places
            .iter()
            .enumerate()
            .filter(|(at, place)| *at != self.place && place.is_owned())
            // One that has not answered yet may be stopped: the next oldest is asked.
            .filter(|(_, place)| place.requested.load(Ordering::SeqCst) == 0)
            .map(|(at, place)| (at, place.oldest.load(Ordering::Acquire)));
        let Some(donor) = choose_donor(now, own, others) else {
            return false;
        };
        let word = &places[donor].requested;
        if word.fetch_max(pages, Ordering::SeqCst) == 0 {
            futex::wake_all(word);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;

    /// A member whose owner is this number, not a thread.
    fn join(budget: &VtlbBudget, place: usize) -> BudgetMember {
        assert!(budget.places()[place].try_own(place as u32 + 1));
        BudgetMember::new(budget.clone(), place)
    }

    /// What the kernel does when the owner ends.
    fn kill(budget: &VtlbBudget, place: usize) {
        budget.places()[place]
            .owner
            .store(0x4000_0000, Ordering::SeqCst);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take(usize),
        Keep(usize, usize),
        Kill(usize),
        Leave(usize),
    }

    const SPACES: usize = 5;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..SPACES).prop_map(Step::Take),
            3 => (0..SPACES, 0usize..16).prop_map(|(space, pages)| Step::Keep(space, pages)),
            1 => (0..SPACES).prop_map(Step::Kill),
            1 => (0..SPACES).prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// Against a list of what each space has.
        #[test]
        fn a_page_is_taken_exactly_where_the_pool_has_one(
            pages in GUARANTEED * SPACES..50,
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let budget = VtlbBudget::create(pages, SPACES).unwrap();
            let mut members: Vec<_> = (0..SPACES).map(|place| join(&budget, place)).collect();
            let mut model = [0; SPACES];
            for step in steps {
                match step {
                    Step::Take(space) => {
                        let free = model.iter().sum::<usize>() < pages - GUARANTEED * SPACES;
                        prop_assert_eq!(members[space].take(), free);
                        model[space] += usize::from(free);
                    }
                    Step::Keep(space, kept) => {
                        members[space].keep(kept);
                        model[space] = model[space].min(kept.saturating_sub(GUARANTEED));
                    }
                    Step::Kill(space) | Step::Leave(space) => {
                        match step {
                            Step::Kill(_) => kill(&budget, space),
                            _ => budget.places()[space].leave(),
                        }
                        model[space] = 0;
                        prop_assert_eq!(budget.taken(), model.iter().sum::<usize>() as u64);
                        members[space] = join(&budget, space);
                    }
                }
                for (member, taken) in members.iter().zip(model) {
                    prop_assert_eq!(member.bound(), GUARANTEED + taken);
                }
                prop_assert_eq!(budget.taken(), model.iter().sum::<usize>() as u64);
            }
        }
    }

    #[test]
    fn spaces_that_take_at_once_never_have_more_than_the_pool() {
        const POOL: usize = 3;
        let budget = VtlbBudget::create(GUARANTEED * SPACES + POOL, SPACES).unwrap();
        let outstanding = AtomicUsize::new(0);
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for place in 0..SPACES {
                let (budget, outstanding, taken) = (&budget, &outstanding, &taken);
                scope.spawn(move || {
                    let mut member = join(budget, place);
                    for _ in 0..20_000 {
                        if member.take() {
                            taken.fetch_add(1, Ordering::Relaxed);
                            assert!(outstanding.fetch_add(1, Ordering::SeqCst) < POOL);
                            outstanding.fetch_sub(1, Ordering::SeqCst);
                            member.keep(member.bound() - 1);
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
        assert_eq!(budget.taken(), 0);
    }

    proptest! {
        /// The policy alone: a space is asked only if it has the oldest entry of all, by far.
        #[test]
        fn the_donor_has_the_oldest_entry_and_twice_the_age(
            now in 0u64..1000,
            own in proptest::option::of(0u64..1000),
            others in proptest::collection::vec(proptest::option::of(0u64..1000), 0..8),
        ) {
            let listed = others.iter().enumerate().map(|(at, e)| (at, e.unwrap_or(NOTHING)));
            let oldest = others.iter().flatten().min();
            match choose_donor(now, own, listed) {
                Some(donor) => {
                    prop_assert_eq!(others[donor].as_ref(), oldest);
                    if let Some(own) = own {
                        let age = |entered: u64| now.saturating_sub(entered);
                        prop_assert!(age(others[donor].unwrap()) >= 2 * age(own));
                    }
                }
                None => prop_assert!(oldest.is_none() || own.is_some()),
            }
        }

        /// Spaces in rounds: some miss in each, the others are idle. Requests are answered in the next
        /// round, or never by those that are stopped. The policy with the real counts.
        #[test]
        fn pages_go_from_idle_spaces_to_those_that_miss(
            idle in 0usize..SPACES,
            stopped in 0usize..SPACES,
            pool in 0usize..40,
        ) {
            let budget = VtlbBudget::create(GUARANTEED * SPACES + pool, SPACES).unwrap();
            let mut spaces: Vec<_> = (0..SPACES).map(|at| (join(&budget, at), Vec::new())).collect();
            // The idle ones take the pool first.
            for round in 0..2 * pool as u64 {
                let space = round as usize % SPACES;
                if space < idle {
                    miss(&mut spaces[space], round);
                }
            }
            for round in 0..20 * (pool as u64 + 1) {
                for (at, space) in spaces.iter_mut().enumerate() {
                    answer(&budget, at, space, at < stopped && at < idle);
                    if at >= idle {
                        miss(space, 1_000_000 + round * 1000 + at as u64);
                    }
                    prop_assert!(space.1.len() <= space.0.bound());
                }
                prop_assert!(budget.taken() <= pool as u64);
            }
            for (at, (member, entries)) in spaces.iter().enumerate() {
                match at {
                    at if at < idle && at >= stopped => prop_assert_eq!(member.bound(), GUARANTEED),
                    at if at < idle => {}
                    _ => prop_assert!(entries.len() >= GUARANTEED),
                }
            }
            let kept: usize = spaces[..idle.min(stopped)].iter().map(|(m, _)| m.bound() - GUARANTEED).sum();
            let busy: usize = spaces[idle..].iter().map(|(m, _)| m.bound() - GUARANTEED).sum();
            prop_assert_eq!(busy + kept, pool);
        }
    }

    /// A member, and when its entries were entered, in order.
    type Modelled = (BudgetMember, Vec<u64>);

    fn miss((member, entries): &mut Modelled, now: u64) {
        if entries.len() == member.bound() && !member.take() {
            member.request_at(now, 1, entries.first().copied());
            entries.remove(0);
        }
        entries.push(now);
        member.publish(
            entries
                .first()
                .copied()
                .filter(|_| entries.len() > GUARANTEED),
        );
    }

    fn answer(budget: &VtlbBudget, at: usize, (member, entries): &mut Modelled, stopped: bool) {
        let requested = &budget.places()[at].requested;
        if stopped || requested.swap(0, Ordering::SeqCst) == 0 || entries.len() <= GUARANTEED {
            return;
        }
        entries.remove(0);
        member.keep(entries.len());
        member.publish(
            entries
                .first()
                .copied()
                .filter(|_| entries.len() > GUARANTEED),
        );
    }
}
