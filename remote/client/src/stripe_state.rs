//! A client's stripes as they outlive its process: a stripe that counts loses none of its redundancy with it.
//!
//! Rule: what is kept is saved before any request leaves. So a stripe that is found has parities of what its members'
//! pages are: no write of a member has left while it was kept.

use crate::client_state::ClientState;
use crate::stripe_code::{MEMBERS, PARITIES};
use crate::stripes::{StripedObjects, Stripes};
use remote_policy::redundancy::{Stripe, StripeShape, StripeState};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// The first word: that there is a stripe, that it dissolves, and its parities.
const THERE: u64 = 1 << 63;
const DISSOLVING: u64 = 1 << 62;
const PARITY: u64 = 0xff;

/// Keeps the stripes that count.
pub fn save_kept(state: &ClientState, stripes: &Stripes) {
    for (at, stripe) in stripes.list.iter().enumerate() {
        let Some(stripe) = stripe.as_ref().filter(|stripe| stripe.rules.protects()) else {
            continue;
        };
        let [word, members @ ..] = state.stripe_words(at) else {
            continue;
        };
        for (word, member) in members.iter().zip(&stripe.parts[..MEMBERS]) {
            word.store(*member as u64, Ordering::Release);
        }
        let is_dissolving = stripe.rules.state() == StripeState::Dissolving;
        let dissolving = if is_dissolving { DISSOLVING } else { 0 };
        let parities = u64::from(stripe.rules.shape().parity);
        word.store(THERE | dissolving | parities, Ordering::Release);
    }
}

/// Forgets the others.
pub fn forget_others(state: &ClientState, stripes: &Stripes) {
    for (at, stripe) in stripes.list.iter().enumerate() {
        let counts = stripe
            .as_ref()
            .is_some_and(|stripe| stripe.rules.protects());
        if !counts && let Some(word) = state.stripe_words(at).first() {
            word.store(0, Ordering::Release);
        }
    }
}

/// The stripe that was kept at a place, of a space of so many objects.
pub fn find(state: &ClientState, at: usize, data: usize) -> Option<StripedObjects> {
    let [word, members @ ..] = state.stripe_words(at) else {
        return None;
    };
    let word = word.load(Ordering::Acquire);
    let parity = (word & PARITY) as usize;
    if word & THERE == 0 || !(1..=PARITIES).contains(&parity) {
        return None;
    }
    let members = members[..MEMBERS].iter();
    let members = members.map(|member| member.load(Ordering::Acquire) as usize);
    let members: Vec<usize> = members.filter(|member| *member < data).collect();
    let distinct: BTreeSet<usize> = members.iter().copied().collect();
    let first_parity = data + at * PARITIES;
    let shape = match parity {
        1 => StripeShape::FOUR_ONE,
        _ => StripeShape::FOUR_TWO,
    };
    (distinct.len() == MEMBERS).then(|| StripedObjects {
        parts: members
            .into_iter()
            .chain(first_parity..first_parity + parity)
            .collect(),
        rules: Stripe::restored(shape, word & DISSOLVING != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{ObjectMap, SpaceSize};
    use crate::restore::tests::{CLIENT, transport_of};
    use crate::stripe_gathering::gather;
    use crate::stripes::release;
    use disk::time::Time;
    use remote_policy::identity::Version;
    use std::time::Duration;
    use wired::PAGE;

    fn stripes(list: Vec<Option<StripedObjects>>) -> Stripes {
        Stripes {
            list,
            ..Stripes::default()
        }
    }

    #[test]
    fn stripes_that_count_are_found_again_as_they_were() {
        let state = ClientState::new(12, 2, 0).unwrap();
        let kept = |parts: [usize; 6], parity: usize, is_dissolving| StripedObjects {
            parts: parts[..MEMBERS + parity].to_vec(),
            rules: Stripe::restored(
                StripeShape {
                    data: MEMBERS as u8,
                    parity: parity as u8,
                },
                is_dissolving,
            ),
        };
        // The second parity depends on the order of the members.
        let first = kept([5, 2, 3, 0, 8, 9], 2, false);
        let second = kept([1, 4, 6, 7, 10, 11], 1, true);
        let both = stripes(vec![Some(first.clone()), Some(second.clone())]);
        save_kept(&state, &both);
        forget_others(&state, &both);
        let found = |at| find(&state, at, 8).map(|it| (it.parts, it.rules));
        assert_eq!(found(0), Some((first.parts, first.rules)));
        assert_eq!(found(1), Some((second.parts.clone(), second.rules)));
        // The first has ended, and the second is being made anew.
        let gathering = StripedObjects {
            rules: Stripe::new(StripeShape::FOUR_ONE, Duration::ZERO),
            parts: second.parts,
        };
        let none = stripes(vec![None, Some(gathering)]);
        save_kept(&state, &none);
        forget_others(&state, &none);
        assert_eq!((found(0), found(1)), (None, None));
    }

    /// Until then the next process takes its parities for what they were.
    #[test]
    fn a_stripe_that_is_released_has_its_parities_until_its_end_is_saved() {
        let space = SpaceSize {
            bytes: MEMBERS as u64 * crate::OBJECT_PAGES * PAGE as u64,
            has_stripes: true,
        };
        let state = ObjectMap::new_state(space, false).unwrap();
        let objects = ObjectMap::new(CLIENT.host, space, None, state.clone());
        let mut transport = transport_of(objects);
        transport.stripes = stripes(vec![Some(StripedObjects {
            parts: (0..=MEMBERS).collect(),
            rules: Stripe::restored(StripeShape::FOUR_ONE, true),
        })]);
        transport.stripes.is_changed = true;
        transport.objects.acknowledge(MEMBERS, 7, Version(9));
        transport.save();
        let left = || {
            let objects = ObjectMap::new(CLIENT.host, space, None, state.clone());
            let stripe = find(&state, 0, MEMBERS);
            (stripe.is_some(), objects.is_held(MEMBERS, 7))
        };
        assert_eq!(left(), (true, true));
        release(&mut transport, 0, Time(0));
        assert_eq!(left(), (true, true));
        transport.save();
        assert!(!left().0);
        // The next one there has pages of its own.
        let members = [0, 1, 2, 3];
        gather(&mut transport, 0, &members, StripeShape::FOUR_ONE, Time(0));
        assert_eq!(left(), (false, false));
    }
}
