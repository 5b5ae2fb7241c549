//! The limits of a tree's faults, applied by its processes.

mod common;

use common::{port, start};
use link::handshake::{Hello, ProgramPlace};
use rate::limiter::{ChargeToken, Limiter};
use rate::thread_counters::{ThreadCounters, ThreadKey};
use std::sync::atomic::AtomicU64;
use supervisor::fault_limits::TreeFaultLimits;

#[test]
fn the_bookings_of_a_process_that_ends_while_its_faults_wait_are_freed() {
    let mut supervisor = start(1024, None);
    let rate = "2/1s,tree=2".parse().ok();
    supervisor.set_fault_limits(TreeFaultLimits::admit(rate, None, 1).unwrap());
    let port = port(&supervisor, true);
    let hello = Hello::Exec {
        program: ProgramPlace::default(),
    };
    let thread = std::thread::spawn(move || port.join(hello).unwrap());
    while supervisor.members().count() == 0 {
        supervisor.dispatch();
    }
    let member = thread.join().unwrap();
    let stats_page = member.map_stats_page().unwrap();
    let threads: Vec<_> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let limiter = Limiter::new(stats_page.limits(), ThreadCounters::new(&threads));
    let fault = |thread, now| {
        let decision = limiter.page_fault(ThreadKey::new(thread), now, ChargeToken::default());
        decision.until.unwrap_or(now)
    };
    let now = wired::clock::now();
    let last = (1..=100).map(|thread| fault(thread, now)).max().unwrap();
    assert!(last > now + 40_000_000_000);
    let block = stats_page.block(member.welcome.slot());
    let word = &block.counters()[wired::Stage::THROTTLED_UNTIL];
    word.store(last, std::sync::atomic::Ordering::Relaxed);
    drop(member);
    while supervisor.members().count() > 0 {
        supervisor.dispatch();
    }
    let now = wired::clock::now();
    assert!(fault(101, now) <= now + 1_000_000_000);
}
