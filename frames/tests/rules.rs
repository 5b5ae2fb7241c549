//! The ledger's rules, after any sequence of requests.

mod common;

use common::{audit, gets_its_guarantee, take};
use frames::{Contract, DomainId, Frame, Ledger, State};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The test's model of a domain.
struct Known {
    id: DomainId,
    frames: Vec<Frame>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_rules_hold_after_any_sequence_of_requests(
        total in 1u32..200,
        steps in prop::collection::vec((0u8..12, 0usize..5, 0u32..60), 1..200),
    ) {
        let ledger = Ledger::create(total, 8).unwrap().0;
        let mut domains: Vec<Known> = Vec::new();
        for (what, which, k) in steps {
            if what == 0 || domains.is_empty() {
                let (g, x) = (k.min(total), k + 1 + which as u32 * 10);
                if let Ok(id) = ledger.admit(Contract { g, x }) {
                    domains.push(Known { id, frames: Vec::new() });
                }
                continue;
            }
            let at = which % domains.len();
            let known = &mut domains[at];
            let client = ledger.client(known.id).unwrap();
            let some = (k as usize).min(known.frames.len());
            match what {
                1..=3 => known.frames.extend(take(&client, k)),
                4 | 5 => {
                    let back: Vec<_> = known.frames.drain(..some).collect();
                    client.put_batch(&back).unwrap();
                }
                6 => { client.release(k); }
                7 => for frame in &known.frames[..some] {
                    let state = [State::Mapped, State::Standby, State::Nailed][which % 3];
                    client.mark(*frame, state).unwrap();
                },
                8 => { ledger.demand(known.id, k); }
                9 => {
                    let back: Vec<_> = known.frames.drain(..(client.demanded() as usize).min(known.frames.len())).collect();
                    client.put_batch(&back).unwrap();
                    client.release_demanded(client.demanded());
                }
                10 => if let Ok(child) = client.admit_child(Contract { g: 0, x: total }) {
                    let _ = client.reserve_for_child(child, k);
                    let child = ledger.adopt(child).unwrap();
                    let frames: Vec<_> = (0..k).map_while(|_| child.take_own()).collect();
                    child.finish_renumbering();
                    domains.push(Known { id: child.id(), frames });
                },
                _ => {
                    let gone = domains.swap_remove(at);
                    let n = ledger.stats(gone.id).unwrap().n;
                    prop_assert_eq!(ledger.retire(gone.id), n);
                }
            }
            audit(&ledger);
            let mut owners = BTreeMap::new();
            for known in &domains {
                for frame in &known.frames {
                    prop_assert_eq!(owners.insert(*frame, known.id), None, "two owners");
                    prop_assert!(ledger.client(known.id).unwrap().state(*frame).is_some());
                }
            }
        }
        // A domain below its guarantee gets it, once others put what is above theirs.
        for known in &mut domains {
            let client = ledger.client(known.id).unwrap();
            client.put_batch(&std::mem::take(&mut known.frames)).unwrap();
        }
        for known in &domains {
            prop_assert!(gets_its_guarantee(&ledger, known.id));
        }
        audit(&ledger);
        domains.iter().for_each(|known| { ledger.retire(known.id); });
        prop_assert_eq!((ledger.free(), ledger.guaranteed(), ledger.domains()), (total, 0, 0));
    }
}
