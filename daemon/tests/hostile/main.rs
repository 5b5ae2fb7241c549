//! Hostile clients of an allowed user against a real daemon, and beside them an honest client, which must
//! not be affected.
//!
//! The daemon and its clients are processes of their own: this test binary, started with a
//! role. Where the test does not run as root, hostile clients are of the daemon's own user.

mod attacks;
mod flood;
mod fuzz;
mod honest;
mod leaving;
mod machine;
mod restart;
mod role;

use machine::Machine;
use protocol::DaemonEvent;
use role::Role;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Plays the role of a process that one of the other tests started; does nothing otherwise.
#[test]
fn a_process_with_a_role_plays_it() {
    if let Some(role) = Role::of_this_process() {
        role::play(role);
    }
}

#[test]
fn a_daemon_among_hostile_clients_serves_the_honest_and_loses_nothing() {
    let machine = Machine::start();
    let honest = machine.honest();
    let before = machine.descriptors();

    // Invalid messages of all kinds: the sender is disconnected, or killed with its tenant.
    let mut sent = 0;
    for seed in 0..1000 {
        sent += machine.play(Role::Fuzz, seed);
        if sent >= 100_000 {
            break;
        }
    }
    assert!(sent >= 100_000, "{sent}");
    for seed in 0..6 {
        machine.play(Role::Scribble, seed);
    }
    // A tenant that keeps frames that it claims to give back is not released.
    assert_eq!(machine.play(Role::Leaver, 0), 1, "{}", machine.log());
    machine.play(Role::Crowd, 0);
    machine.play(Role::NeverReads, 0);

    machine.await_descriptors(before);
    assert!(
        machine.log().contains("is disconnected"),
        "{}",
        machine.log()
    );
    // A new client can have all resources: no frame and no blok was lost.
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // Descriptors whose close blocks, in every kind of message.
    machine.play(Role::Linger, 0);
    let (reads, gap) = honest.end();
    assert!(
        reads > 0 && gap < Duration::from_secs(20),
        "{reads} {gap:?}"
    );
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // The number is limited, since a channel's page buffers are the daemon's memory.
    assert_eq!(machine.file_channels(), 2);
}

#[test]
fn an_answer_that_arrives_in_time_counts_though_unidentified_peers_are_before_it() {
    let machine = Machine::start();
    let mut flood = machine.begin(Role::Flood, 0);
    machine.await_count(1);
    let mut answers = machine.begin(Role::Answers, 0);
    machine.await_count(1);
    let mut needs = machine.begin(Role::Needs, 0);
    // Its frames are revoked: it answers behind the flood, while the daemon is stopped.
    machine.await_count(1);
    machine.stop();
    machine.make_go_file();
    machine.await_count(1 + 2);
    std::thread::sleep(Duration::from_secs(2));
    machine.resume();
    machine.await_count(1 + 2 + 2);
    assert!(!machine.log().contains("is killed"), "{}", machine.log());
    for (what, child) in [
        ("flood", &mut flood),
        ("answers", &mut answers),
        ("needs", &mut needs),
    ] {
        let ended = child.wait().unwrap();
        // A tenant that disconnects without leaving is killed.
        let is_right = ended.success() || (what != "flood" && ended.signal() == Some(9));
        assert!(is_right, "{what}: {ended}: {}", machine.log());
    }
}

#[test]
fn a_list_longer_than_its_readers_queue_arrives_whole() {
    let machine = Machine::start();
    assert_eq!(machine.listed(400), 400, "{}", machine.log());
}

#[test]
fn a_tenant_that_reads_late_receives_all_events_that_it_waits_for() {
    let machine = Machine::start();
    let events = machine.read_late(1000);
    let (opened, closed) = events.split_last().unwrap();
    let expected: Vec<_> = (0..1000).map(DaemonEvent::Closed).collect();
    assert_eq!(closed, expected);
    let is_opened = matches!(opened, DaemonEvent::Opened { cookie: 5, .. });
    assert!(is_opened, "{opened:?}");
}

#[test]
fn a_contract_for_a_file_ends_with_its_process_though_another_process_has_its_connection() {
    let machine = Machine::start();
    let mut leader = machine.spawn(Role::Bequeaths, 0, 0, "leader");
    assert!(leader.wait().unwrap().success(), "{}", machine.log());
    machine.await_no_tenants();
}

#[test]
fn the_daemon_refuses_a_clients_file_that_is_open_for_writing() {
    let why = Machine::start().refusal_of_writable();
    assert!(why.contains("open for reading"), "{why}");
}

/// A short run of a fixed seed; `make fuzz-daemon FOR=SECONDS SEED=NUMBER` runs others.
#[test]
fn honest_programs_page_beside_all_hostile_roles_at_once() {
    let variable = |name, default: &str| std::env::var(name).unwrap_or(default.into());
    let time = fuzz::seconds(&variable("SELFPAGE_FUZZ_FOR", "5s"));
    let seed = variable("SELFPAGE_FUZZ_SEED", "1").parse().unwrap();
    let rounds = fuzz::run(time, seed);
    println!("{rounds} rounds of seed {seed}");
}

#[test]
fn a_linked_program_leaves_when_it_has_nothing_left_and_is_not_killed() {
    let mut machine = Machine::start();
    let done = machine.play(Role::Linked, 0);
    assert_eq!(done, leaving::ROUNDS, "{}", machine.log());
    assert!(machine.log().contains("(linked) has left"));
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // A daemon that is killed before it has replied: the next daemon releases the tenant.
    let mut tenant = machine.begin(Role::Interrupted, 0);
    machine.await_count(1);
    machine.stop();
    machine.make_go_file();
    std::thread::sleep(Duration::from_millis(300));
    machine.restart();
    let ended = tenant.wait().unwrap();
    assert!(
        ended.success(),
        "{}{}",
        machine.last_errors(),
        machine.log()
    );
    machine.await_count(2);
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());
}

#[test]
fn the_daemon_polls_no_bell_of_a_tenant_that_has_left() {
    let machine = Machine::start();
    machine.await_service();
    let before = machine.polled();
    let mut tenant = machine.begin(Role::Bells, 0);
    machine.await_count(leaving::BELLS);
    let polled = machine.polled();
    tenant.kill().unwrap();
    tenant.wait().unwrap();
    // Its connection is polled, and none of its bells.
    assert!(polled <= before + 1, "{polled} {before} {}", machine.log());
}
