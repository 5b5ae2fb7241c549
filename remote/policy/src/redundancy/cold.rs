//! Which cold objects become stripes.
//!
//! Rule: a stripe is never written in place. A write waits until the members have copies again
//! ([`Stripe`](super::Stripe)), never for parity.

use super::{Redundancy, StripeShape};
use crate::lru_size::ObjectUse;
use std::time::Duration;

/// What makes an object cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdPolicy {
    /// How long it has not been used.
    pub idle: Duration,
    /// Its least size: below, the messages of six servers outweigh the pages saved.
    pub min_pages: u64,
}

/// An object that becomes a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeChoice {
    /// The object, as it was used.
    pub usage: ObjectUse,
    /// The stripe.
    pub shape: StripeShape,
    /// Pages that become free at servers.
    pub saved_pages: u64,
}

impl Default for ColdPolicy {
    /// Section 4.1 of the paper: of the objects above median size, 75 % live longer than 10
    /// minutes, so that an object's age says that it stays, and the same time without use that it
    /// is not needed soon. 64 pages are not measured yet.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(600),
            min_pages: 64,
        }
    }
}

impl ColdPolicy {
    /// The stripe that so many servers with room allow: the safer one first.
    pub fn shape_for(servers: usize) -> Option<StripeShape> {
        let shapes = [StripeShape::FOUR_TWO, StripeShape::FOUR_ONE];
        shapes
            .into_iter()
            .find(|shape| Redundancy::Stripe(*shape).parts() <= servers)
    }

    /// The objects to make stripes of, the longest idle first. `servers` have room for a part of
    /// each; `stored` is the form that the objects have.
    pub fn select(
        &self,
        objects: &[ObjectUse],
        stored: Redundancy,
        servers: usize,
        now: Duration,
    ) -> Vec<StripeChoice> {
        let Some(shape) = Self::shape_for(servers) else {
            return Vec::new();
        };
        let stripe = Redundancy::Stripe(shape);
        let total = |form: Redundancy, pages| form.pages_per_part(pages) * form.parts() as u64;
        let choice = |usage: &ObjectUse| {
            let pages = usage.size_pages;
            let is_cold =
                now.saturating_sub(usage.last_used) >= self.idle && pages >= self.min_pages;
            let saved_pages = total(stored, pages).saturating_sub(total(stripe, pages));
            (is_cold && saved_pages > 0).then_some(StripeChoice {
                usage: *usage,
                shape,
                saved_pages,
            })
        };
        let mut choices: Vec<_> = objects.iter().filter_map(choice).collect();
        choices.sort_by_key(|one| (one.usage.last_used, one.usage.faults, one.usage.object));
        choices
    }
}
