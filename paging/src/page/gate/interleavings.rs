//! Every interleaving of threads at one gate, under loom.

use super::RangeGate;
use crate::page::interleavings::explore;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;

#[test]
fn a_gate_never_holds_a_closer_and_another() {
    explore(|| {
        let shared = Arc::new((RangeGate::default(), AtomicU32::new(0)));
        let closer = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.0.close();
                assert_eq!(shared.1.fetch_add(10, SeqCst), 0);
                shared.1.fetch_sub(10, SeqCst);
                shared.0.open();
            })
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.0.enter();
                assert!(shared.1.fetch_add(1, SeqCst) < 10);
                shared.1.fetch_sub(1, SeqCst);
                shared.0.leave();
            })
        };
        shared.0.close();
        assert_eq!(shared.1.load(SeqCst), 0);
        shared.0.open();
        closer.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_gate_that_is_closed_for_some_pages_admits_publishers_of_others_alone() {
    explore(|| {
        let shared = Arc::new((RangeGate::default(), [(); 2].map(|()| AtomicU32::new(0))));
        let closer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (gate, pages) = &*shared;
                for (at, page) in pages.iter().enumerate() {
                    gate.close();
                    gate.admit_beside(&(at..at + 1));
                    assert_eq!(page.fetch_add(10, SeqCst), 0);
                    page.fetch_sub(10, SeqCst);
                    gate.open();
                }
            })
        };
        let (gate, pages) = &*shared;
        gate.enter_for(&(1..2));
        assert_eq!(pages[1].fetch_add(1, SeqCst), 0);
        pages[1].fetch_sub(1, SeqCst);
        gate.leave();
        closer.join().unwrap();
    });
}

#[test]
fn a_publisher_of_another_page_does_not_wait_for_the_gate_to_open() {
    explore(|| {
        let gate = Arc::new(RangeGate::default());
        gate.close();
        let publisher = {
            let gate = gate.clone();
            thread::spawn(move || {
                gate.enter_for(&(1..2));
                gate.leave();
            })
        };
        gate.admit_beside(&(0..1));
        publisher.join().unwrap();
        gate.open();
    });
}
