//! A domain whose frames come back before its slot.

use frames::{Contract, Ledger};

const CONTRACT: Contract = Contract { g: 4, x: 8 };

#[test]
fn a_drained_domain_owns_nothing_and_keeps_its_slot_until_it_is_retired() {
    let (ledger, _fd) = Ledger::create(8, 2).unwrap();
    let dead = ledger.admit(CONTRACT).unwrap();
    let other = ledger.adopt(ledger.admit(CONTRACT).unwrap()).unwrap();
    let own = ledger.adopt(dead).unwrap();
    (0..4).for_each(|_| assert!(own.take().is_some()));

    assert_eq!(ledger.drain(dead), 4);
    assert_eq!(ledger.drain(dead), 0);
    assert_eq!((ledger.free(), ledger.owned()), (8, 0));
    assert_eq!((ledger.domains(), ledger.guaranteed()), (1, 4));
    assert!(ledger.client(dead).is_err() && own.take().is_none());
    assert!((0..8).all(|_| other.take().is_some()));
    assert!(ledger.admit(CONTRACT).is_err(), "no slot is vacant");

    assert_eq!(ledger.retire(dead), 0);
    let next = ledger.admit(CONTRACT).unwrap();
    assert_eq!(next.slot(), dead.slot());
    assert_eq!(ledger.retire(dead), 0);
    assert!(ledger.client(next).is_ok(), "its id is another's");
}

#[test]
fn a_drained_child_keeps_its_slot_when_its_creator_is_retired() {
    let (ledger, _fd) = Ledger::create(8, 2).unwrap();
    let creator = ledger.adopt(ledger.admit(CONTRACT).unwrap()).unwrap();
    let child = creator.admit_child(CONTRACT).unwrap();
    ledger.drain(child);
    ledger.retire(creator.id());
    let next = ledger.admit(CONTRACT).unwrap();
    assert_ne!(next.slot(), child.slot());
    assert!(ledger.admit(CONTRACT).is_err(), "no slot is vacant");
    ledger.retire(child);
    assert_eq!(ledger.admit(CONTRACT).unwrap().slot(), child.slot());
}

#[test]
fn nothing_is_demanded_from_a_drained_domain() {
    let (ledger, _fd) = Ledger::create(8, 2).unwrap();
    let own = ledger.adopt(ledger.admit(CONTRACT).unwrap()).unwrap();
    (0..8).for_each(|_| assert!(own.take().is_some()));
    let other = ledger.admit(CONTRACT).unwrap();
    assert_eq!(ledger.demand(other, 4), 4);
    ledger.drain(own.id());
    assert_eq!(ledger.demand(other, 4), 0);
}
