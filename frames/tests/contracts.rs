//! The allocator's promises, one thread at a time, under any sequence of requests.

mod common;

use common::{admit, audit, gets_its_guarantee, take};
use frames::{AdmissionError, Contract, DomainId, Frame, Ledger, LedgerMisuse, Process, State};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn ledger(total: u32) -> Ledger {
    Ledger::create(total, 8).unwrap().0
}

#[test]
fn guarantees_past_the_total_are_refused_with_the_figures() {
    let ledger = ledger(100);
    admit(&ledger, 60, 100);
    let refusal = ledger
        .admit(Contract { g: 41, x: 50 }, Process::default())
        .unwrap_err();
    assert_eq!(
        refusal,
        AdmissionError::Guarantee {
            asked: 41,
            admitted: 60,
            total: 100,
            domains: 1
        }
    );
    let text = refusal.to_string();
    for part in ["41 guaranteed frames", "60 of 100", "at most 40 frames"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        ledger
            .admit(Contract { g: 40, x: 50 }, Process::default())
            .is_ok()
    );
}

#[test]
fn a_contract_that_contradicts_itself_is_refused() {
    let ledger = ledger(100);
    for (g, x) in [(0, 0), (5, 4)] {
        let refusal = ledger.admit(Contract { g, x }, Process::default());
        assert_eq!(refusal, Err(AdmissionError::Contract { g, x }));
    }
}

#[test]
fn more_domains_than_slots_are_refused() {
    let ledger = ledger(100);
    for _ in 0..8 {
        admit(&ledger, 1, 1);
    }
    let refusal = ledger.admit(Contract { g: 1, x: 1 }, Process::default());
    assert_eq!(refusal, Err(AdmissionError::Slots { slots: 8 }));
    assert_eq!(ledger.guaranteed(), 8);
}

#[test]
fn a_domain_never_owns_more_than_x() {
    let ledger = ledger(100);
    let client = admit(&ledger, 4, 10);
    assert_eq!(take(&client, 50).len(), 10);
    assert_eq!(client.n(), 10);
    audit(&ledger);
}

#[test]
fn optimistic_frames_never_come_out_of_anothers_guarantee() {
    let ledger = ledger(100);
    let greedy = admit(&ledger, 0, 100);
    let modest = admit(&ledger, 30, 30);
    assert_eq!(take(&greedy, 100).len(), 70);
    assert_eq!(greedy.resident_limit(), 70);
    assert_eq!(take(&modest, 30).len(), 30, "at once, and nobody was asked");
    audit(&ledger);
}

#[test]
fn an_unused_frame_is_taken_over_without_its_owners_help() {
    let ledger = ledger(10);
    let idle = admit(&ledger, 2, 10);
    let frames = take(&idle, 10);
    idle.put_batch(&frames[..5]).unwrap();
    let busy = admit(&ledger, 0, 10);
    assert_eq!(take(&busy, 10).len(), 5);
    assert_eq!((idle.n(), idle.unused(), busy.n()), (5, 0, 5));
    assert_eq!(idle.take_own(), None, "it finds out when it looks");
    let lost = ledger.stats(idle.id()).unwrap();
    assert_eq!(
        (lost.lost, ledger.stats(busy.id()).unwrap().taken_over),
        (5, 5)
    );
    audit(&ledger);
}

#[test]
fn guaranteed_frames_are_not_taken_over_unused_as_they_may_be() {
    let ledger = ledger(10);
    let idle = admit(&ledger, 6, 10);
    let frames = take(&idle, 10);
    idle.put_batch(&frames).unwrap();
    let busy = admit(&ledger, 0, 10);
    assert_eq!(take(&busy, 10).len(), 4);
    assert_eq!((idle.n(), idle.unused()), (6, 6));
    audit(&ledger);
}

#[test]
fn a_guarantee_lent_out_before_it_was_admitted_comes_back_by_revocation() {
    let ledger = ledger(100);
    let hog = admit(&ledger, 20, 100);
    let mut held = take(&hog, 100);
    let late = admit(&ledger, 50, 50);
    assert_eq!(late.take(), None);
    let bell = hog.bell_seq();
    assert_eq!(ledger.demand(late.id(), 50), 50);
    assert_ne!(hog.bell_seq(), bell, "its bell was rung");
    assert_eq!(hog.demanded(), 50);
    assert_eq!(
        ledger.demand(late.id(), 50),
        50,
        "asking again does not ask for more"
    );
    assert_eq!(hog.demanded(), 50);
    hog.put_batch(&held.split_off(50)).unwrap();
    assert_eq!(hog.release_demanded(hog.demanded()), 50);
    assert_eq!(
        (hog.demanded(), hog.take()),
        (0, None),
        "they are not the hog's to take again"
    );
    assert_eq!(take(&late, 60).len(), 50);
    audit(&ledger);
}

#[test]
fn those_with_the_most_above_their_guarantee_are_asked_first() {
    let ledger = ledger(100);
    let clients = [(10, 30), (10, 50), (20, 20)].map(|(g, n)| {
        let client = admit(&ledger, g, 100);
        take(&client, n);
        client
    });
    let late = admit(&ledger, 40, 40);
    assert_eq!(ledger.demand(late.id(), 40), 40);
    assert_eq!(clients.map(|client| client.demanded()), [0, 40, 0]);
    assert_eq!(
        ledger.demand(late.id(), 70),
        60,
        "no more than is above the guarantees"
    );
    assert_eq!(clients.map(|client| client.demanded()), [20, 40, 0]);
}

#[test]
fn a_tree_member_that_waits_gets_its_share_before_the_others_grow() {
    let ledger = ledger(100);
    let (first, second) = (admit(&ledger, 4, 100), admit(&ledger, 4, 100));
    let mut held = take(&first, 96);
    assert_eq!(first.n(), 96);
    take(&second, 4);
    assert_eq!(second.take(), None);
    assert_eq!(
        ledger.demand(second.id(), 60),
        46,
        "down to the fair share of 50"
    );
    first.put_batch(&held.split_off(50)).unwrap();
    assert_eq!(first.answer(46), 46);
    assert_eq!(first.take(), None, "at its share, while another waits");
    assert_eq!(take(&second, 46).len(), 46);
    audit(&ledger);
}

#[test]
fn a_frame_is_only_changed_by_the_domain_that_uses_it() {
    let ledger = ledger(10);
    let (one, other) = (admit(&ledger, 2, 4), admit(&ledger, 2, 4));
    let frame = one.take().unwrap();
    assert!(matches!(
        other.put(frame),
        Err(LedgerMisuse::NotInUse { .. })
    ));
    assert!(matches!(
        other.mark(frame, State::Nailed),
        Err(LedgerMisuse::NotInUse { .. })
    ));
    assert_eq!(
        one.mark(frame, State::Free),
        Err(LedgerMisuse::NotAMark(State::Free))
    );
    assert_eq!(one.put(Frame(10)), Err(LedgerMisuse::NoSuchFrame(10)));
    one.put(frame).unwrap();
    assert!(matches!(
        one.put(frame),
        Err(LedgerMisuse::NotInUse {
            state: State::Unused,
            ..
        })
    ));
    assert_eq!(
        (other.state(frame), one.state(frame)),
        (None, Some(State::Unused))
    );
    audit(&ledger);
}

#[test]
fn the_frame_stack_lists_what_goes_first_first() {
    let ledger = ledger(10);
    let client = admit(&ledger, 4, 4);
    let frames = take(&client, 4);
    client.mark(frames[0], State::Nailed).unwrap();
    client.mark(frames[1], State::Standby).unwrap();
    client.put(frames[3]).unwrap();
    let mut stack = Vec::new();
    client.stack(|frame, state| stack.push((frame, state)));
    let states = [State::Unused, State::Standby, State::Mapped, State::Nailed];
    let order = [frames[3], frames[1], frames[2], frames[0]];
    assert_eq!(stack, order.into_iter().zip(states).collect::<Vec<_>>());
}

#[test]
fn a_child_takes_from_its_reserve_and_nobody_else_does() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    let thief = admit(&ledger, 0, 100);
    take(&parent, 30);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 40).unwrap();
    assert_eq!(take(&thief, 100).len(), 30);
    let child = ledger.adopt(child, Process { pid: 2, start: 2 }).unwrap();
    assert_eq!((0..35).map_while(|_| child.take_own()).count(), 35);
    assert_eq!(child.finish_renumbering(), 5);
    assert_eq!((child.n(), child.unused()), (40, 5));
    assert_eq!(
        take(&thief, 100).len(),
        5,
        "what is left over is unused like any"
    );
    audit(&ledger);
}

#[test]
fn a_reserve_that_cannot_be_had_whole_is_not_had_at_all() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    let held = take(&parent, 80);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    let short = parent.reserve_for_child(child, 50).unwrap_err();
    assert_eq!((short.asked, short.missing), (50, 30));
    assert_eq!(ledger.stats(child).unwrap().n, 0);
    audit(&ledger);
    parent.put_batch(&held[..30]).unwrap();
    parent.reserve_for_child(child, 50).unwrap();
    assert_eq!(parent.n(), 50, "from what the parent has unused itself");
    audit(&ledger);
}

#[test]
fn a_child_nobody_took_up_goes_with_its_parent() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    take(&parent, 10);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 20).unwrap();
    assert_eq!(ledger.retire(parent.id()), 30);
    assert!(ledger.adopt(child, Process::default()).is_err());
    assert_eq!(
        (ledger.domains(), ledger.guaranteed(), ledger.free()),
        (0, 0, 100)
    );
}

#[test]
fn an_adopted_child_outlives_its_parent() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 20).unwrap();
    let child = ledger.adopt(child, Process::default()).unwrap();
    assert_eq!(ledger.retire(parent.id()), 0);
    assert_eq!(child.n(), 20);
    audit(&ledger);
}

#[test]
fn after_an_exec_everything_is_unused() {
    let ledger = ledger(100);
    let client = admit(&ledger, 10, 100);
    let frames = take(&client, 20);
    client.mark(frames[0], State::Nailed).unwrap();
    client.put(frames[1]).unwrap();
    assert_eq!(client.abandon_all(), 20);
    assert_eq!((client.n(), client.unused()), (20, 20));
    assert_eq!(take(&client, 20).len(), 20);
    audit(&ledger);
}

#[test]
fn a_retired_name_means_nobody_even_when_its_slot_is_used_again() {
    let ledger = ledger(10);
    let old = admit(&ledger, 2, 4).id();
    assert_eq!(ledger.retire(old), 0);
    let new = admit(&ledger, 2, 4);
    take(&new, 4);
    assert_eq!(ledger.retire(old), 0);
    assert!(ledger.client(old).is_err() && ledger.stats(old).is_none());
    assert_eq!(DomainId::from_raw(new.id().raw()), new.id());
    assert_eq!(ledger.retire(new.id()), 4);
}

#[test]
fn another_process_finds_the_same_books_behind_the_descriptor() {
    let (ledger, fd) = Ledger::create(1000, 4).unwrap();
    let client = admit(&ledger, 5, 10);
    take(&client, 7);
    let other = Ledger::attach(&fd).unwrap();
    assert_eq!((other.total(), other.free()), (1000, 993));
    assert_eq!(other.client(client.id()).unwrap().n(), 7);
}

#[test]
fn a_descriptor_of_something_else_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Ledger::attach(&file).is_err());
    assert!(Ledger::create(0, 1).is_err() && Ledger::create(1, 0).is_err());
}

#[test]
fn one_who_waits_for_frames_is_woken_when_they_are_given_back() {
    let ledger = &ledger(10);
    let holder = admit(ledger, 0, 10);
    let frames = take(&holder, 10);
    let waiter = admit(ledger, 5, 10);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            loop {
                let seq = ledger.freed_seq();
                match waiter.take() {
                    Some(frame) => break frame,
                    None => {
                        ledger.demand(waiter.id(), 1);
                        ledger.wait_freed(seq, Some(Duration::from_secs(20)));
                    }
                }
            }
        });
        while holder.demanded() == 0 {
            let bell = holder.bell_seq();
            if holder.demanded() == 0 {
                holder.wait_bell(bell, Some(Duration::from_millis(100)));
            }
        }
        holder.put(frames[0]).unwrap();
        holder.answer(1);
        waiting.join().unwrap();
    });
    audit(ledger);
}

/// A domain as the test knows it.
struct Known {
    id: DomainId,
    frames: Vec<Frame>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_promises_hold_after_any_sequence_of_requests(
        total in 1u32..200,
        steps in prop::collection::vec((0u8..12, 0usize..5, 0u32..60), 1..200),
    ) {
        let ledger = ledger(total);
        let mut domains: Vec<Known> = Vec::new();
        for (what, which, k) in steps {
            if what == 0 || domains.is_empty() {
                let (g, x) = (k.min(total), k + 1 + which as u32 * 10);
                if let Ok(id) = ledger.admit(Contract { g, x }, Process::default()) {
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
                    let child = ledger.adopt(child, Process::default()).unwrap();
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
        // Whoever is below its guarantee gets it, once others put down what is above theirs.
        for known in &mut domains {
            let client = ledger.client(known.id).unwrap();
            client.put_batch(&std::mem::take(&mut known.frames)).unwrap();
        }
        for known in &domains {
            prop_assert!(gets_its_guarantee(&ledger, known.id));
        }
        audit(&ledger);
        for known in domains {
            ledger.retire(known.id);
        }
        prop_assert_eq!((ledger.free(), ledger.guaranteed(), ledger.domains()), (total, 0, 0));
    }
}
