//! The ledger's guarantees, one thread at a time.

mod common;

use common::{admit, audit, take};
use frames::{AdmissionError, Contract, DomainId, DomainPhase, Frame, Ledger, LedgerMisuse, State};
use std::time::Duration;

fn ledger(total: u32) -> Ledger {
    Ledger::create(total, 8).unwrap().0
}

#[test]
fn guarantees_above_the_total_are_refused_with_the_numbers() {
    let ledger = ledger(100);
    admit(&ledger, 60, 100);
    let refusal = ledger.admit(Contract { g: 41, x: 50 }).unwrap_err();
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
    for part in [
        "cannot guarantee 41 frames",
        "60 of 100",
        "at most 40 frames",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(ledger.admit(Contract { g: 40, x: 50 }).is_ok());
}

#[test]
fn an_invalid_contract_is_refused() {
    let ledger = ledger(100);
    for (g, x) in [(0, 0), (5, 4)] {
        let refusal = ledger.admit(Contract { g, x });
        assert_eq!(refusal, Err(AdmissionError::Contract { g, x }));
    }
}

#[test]
fn domains_nail_frames_up_to_what_they_leave_between_them() {
    let ledger = ledger(100);
    let (one, other) = (admit(&ledger, 40, 100), admit(&ledger, 40, 100));
    assert_eq!(ledger.room_to_nail(4), 88);
    assert_eq!(ledger.room_to_nail(20), 60, "two domains keep 20 each");
    for frame in take(&one, 60) {
        one.mark(frame, State::Nailed).unwrap();
    }
    assert_eq!(ledger.room_to_nail(4), 28);
    other.note_locked(8);
    assert_eq!(ledger.room_to_nail(4), 20, "shared memory is locked, too");
    other.note_locked(0);
    let frame = other.take().unwrap();
    for state in [State::Nailed, State::Nailed, State::Mapped, State::Nailed] {
        other.mark(frame, state).unwrap();
    }
    assert_eq!(ledger.room_to_nail(4), 27, "each once");
    other.put(frame).unwrap();
    assert_eq!(ledger.room_to_nail(4), 28);
    ledger.set_max_guaranteed(60);
    assert_eq!(ledger.room_to_nail(4), 0);
    ledger.retire(one.id());
    assert_eq!(ledger.room_to_nail(4), 53, "those of a process that ended");
}

#[test]
fn more_domains_than_slots_are_refused() {
    let ledger = ledger(100);
    for _ in 0..8 {
        admit(&ledger, 1, 1);
    }
    let refusal = ledger.admit(Contract::from(1));
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
    assert_eq!(take(&modest, 30).len(), 30, "at once, without a demand");
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
    assert_eq!(idle.take_own(), None, "its own compare-and-swap fails");
    let lost = ledger.stats(idle.id()).unwrap();
    assert_eq!(
        (lost.lost, ledger.stats(busy.id()).unwrap().taken_over),
        (5, 5)
    );
    audit(&ledger);
}

#[test]
fn guaranteed_frames_are_not_taken_over_even_unused() {
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
fn a_guarantee_lent_out_before_its_admission_is_met_by_revocation() {
    let ledger = ledger(100);
    let hog = admit(&ledger, 20, 100);
    let mut held = take(&hog, 100);
    let late = admit(&ledger, 50, 50);
    assert_eq!(late.take(), None);
    let bell = hog.bell_seq();
    assert_eq!(ledger.demand(late.id(), 50), 50);
    assert_ne!(hog.bell_seq(), bell, "the hog was rung");
    assert_eq!(hog.demanded(), 50);
    assert_eq!(
        ledger.demand(late.id(), 50),
        50,
        "demanding again does not demand more"
    );
    assert_eq!(hog.demanded(), 50);
    hog.put_batch(&held.split_off(50)).unwrap();
    assert_eq!(hog.release_demanded(hog.demanded()), 50);
    assert_eq!(
        (hog.demanded(), hog.take()),
        (0, None),
        "the hog cannot take them again"
    );
    assert_eq!(take(&late, 60).len(), 50);
    audit(&ledger);
}

#[test]
fn domains_with_the_largest_surplus_are_revoked_first() {
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
fn a_waiting_domain_gets_its_share_before_the_others_grow() {
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
    assert_eq!(first.release_demanded(46), 46);
    assert_eq!(first.take(), None, "at its share, while another waits");
    assert_eq!(take(&second, 46).len(), 46);
    audit(&ledger);
}

#[test]
fn only_the_owner_of_a_frame_changes_its_state() {
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
fn the_frame_stack_lists_frames_in_order_of_loss() {
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
fn only_a_child_takes_from_its_reserve() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    let thief = admit(&ledger, 0, 100);
    take(&parent, 30);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 40).unwrap();
    assert_eq!(take(&thief, 100).len(), 30);
    let child = ledger.adopt(child).unwrap();
    assert_eq!((0..35).map_while(|_| child.take_own()).count(), 35);
    assert_eq!(child.finish_renumbering(), 5);
    assert_eq!((child.n(), child.unused()), (40, 5));
    assert_eq!(
        take(&thief, 100).len(),
        5,
        "the rest is unused like any other frame"
    );
    audit(&ledger);
}

#[test]
fn a_reserve_that_is_not_fully_available_takes_nothing() {
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
    assert_eq!(parent.n(), 50, "from the parent's own unused frames");
    audit(&ledger);
}

#[test]
fn a_child_that_is_about_to_join_outlives_its_parent() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    take(&parent, 10);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 20).unwrap();
    assert_eq!(ledger.retire(parent.id()), 10);
    assert_eq!(ledger.stats(child).unwrap().phase, DomainPhase::Nascent);
    let another = admit(&ledger, 10, 100);
    assert_eq!(ledger.retire(another.id()), 0);
    let adopted = ledger.adopt(child).unwrap();
    assert_eq!(adopted.n(), 20);
    audit(&ledger);
    assert_eq!(ledger.retire(child), 20);
    assert_eq!(
        (ledger.domains(), ledger.guaranteed(), ledger.free()),
        (0, 0, 100)
    );
}

#[test]
fn a_child_that_was_never_adopted_is_retired_like_any() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 20).unwrap();
    ledger.retire(parent.id());
    assert_eq!(ledger.retire(child), 20);
    assert!(ledger.adopt(child).is_err());
    assert_eq!((ledger.domains(), ledger.free()), (0, 100));
}

#[test]
fn an_adopted_child_outlives_its_parent() {
    let ledger = ledger(100);
    let parent = admit(&ledger, 10, 100);
    let child = parent.admit_child(Contract { g: 10, x: 100 }).unwrap();
    parent.reserve_for_child(child, 20).unwrap();
    let child = ledger.adopt(child).unwrap();
    assert_eq!(ledger.retire(parent.id()), 0);
    assert_eq!(child.n(), 20);
    audit(&ledger);
}

#[test]
fn a_retired_id_names_no_domain_even_when_its_slot_is_reused() {
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
fn another_process_attaches_the_same_ledger_by_its_descriptor() {
    let (ledger, fd) = Ledger::create(1000, 4).unwrap();
    let client = admit(&ledger, 5, 10);
    take(&client, 7);
    let other = Ledger::attach(&fd).unwrap();
    assert_eq!((other.total(), other.free()), (1000, 993));
    assert_eq!(other.client(client.id()).unwrap().n(), 7);
}

#[test]
fn a_descriptor_of_another_file_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Ledger::attach(&file).is_err());
    assert!(Ledger::create(0, 1).is_err() && Ledger::create(1, 0).is_err());
}

#[test]
fn a_waiter_is_woken_when_frames_are_released() {
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
        holder.release_demanded(1);
        waiting.join().unwrap();
    });
    audit(ledger);
}
