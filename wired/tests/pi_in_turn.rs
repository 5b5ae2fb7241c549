//! Locks without priority inheritance, which is a state of the whole process.

use std::sync::atomic::{AtomicBool, Ordering};
use wired::pi::{PiLock, disable_inheritance};

#[test]
fn every_increment_counts_and_each_waiter_gets_the_lock() {
    disable_inheritance();
    let lock = PiLock::new(0u64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One thread holds the lock nearly all the time.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                *lock.lock() += 0;
            }
        });
        let add = || (0..500).for_each(|_| *lock.lock() += 1);
        let others: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        for other in others {
            other.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(*lock.lock(), 2_000);
    assert!(lock.try_lock().is_some());
}
