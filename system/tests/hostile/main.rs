//! A client that means harm, of an allowed user, against a real daemon; and beside it an honest
//! one, that must notice nothing.
//!
//! The daemon and its clients are processes of their own: this test binary, started with a
//! role. Where the test is not root the hostile one is of the daemon's own user.

mod attacks;
mod machine;

use machine::{Machine, Role};
use std::time::Duration;

/// What a process of this binary does; nothing unless one of the other tests started it.
#[test]
fn a_process_with_a_role_plays_it() {
    if let Some(role) = Role::of_this_process() {
        machine::play(role);
    }
}

#[test]
fn a_daemon_among_hostile_clients_serves_the_honest_and_loses_nothing() {
    let machine = Machine::start();
    let honest = machine.honest();
    let before = machine.descriptors();

    // Nonsense of all kinds: who makes it is cut off, or killed with its tenant.
    let mut said = 0;
    for seed in 0..1000 {
        said += machine.play(Role::Fuzz, seed);
        if said >= 100_000 {
            break;
        }
    }
    assert!(said >= 100_000, "{said}");
    for seed in 0..6 {
        machine.play(Role::Scribble, seed);
    }
    machine.play(Role::Crowd, 0);
    machine.play(Role::Deaf, 0);

    machine.settles_at(before);
    assert!(machine.log().contains("is cut off"), "{}", machine.log());
    // Whoever comes now can have all there is: no frame and no blok was lost.
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // What waits for ever when it is closed, in every way that it can come.
    machine.play(Role::Linger, 0);
    let (reads, gap) = honest.ends();
    assert!(
        reads > 0 && gap < Duration::from_secs(20),
        "{reads} {gap:?}"
    );
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());
}
