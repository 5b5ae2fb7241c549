//! A client that means harm, of an allowed user, against a real daemon; and beside it an honest
//! one, that must notice nothing.
//!
//! The daemon and its clients are processes of their own: this test binary, started with a
//! role. Where the test is not root the hostile one is of the daemon's own user.

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

/// What a process of this binary does; nothing unless one of the other tests started it.
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
    // A tenant that keeps what it claims to give back is not released.
    assert_eq!(machine.play(Role::Leaver, 0), 1, "{}", machine.log());
    machine.play(Role::Crowd, 0);
    machine.play(Role::Deaf, 0);

    machine.settles_at(before);
    assert!(
        machine.log().contains("is disconnected"),
        "{}",
        machine.log()
    );
    // A newcomer can have all there is: no frame and no blok was lost.
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // What waits for ever when it is closed, in every way that it can come.
    machine.play(Role::Linger, 0);
    let (reads, gap) = honest.ends();
    assert!(
        reads > 0 && gap < Duration::from_secs(20),
        "{reads} {gap:?}"
    );
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // Its page buffers are the daemon's memory.
    assert_eq!(machine.file_channels(), 2);
}

#[test]
fn an_answer_that_came_in_time_counts_though_strangers_are_before_it() {
    let machine = Machine::start();
    let mut flood = machine.begin(Role::Flood, 0);
    machine.counted(1);
    let mut answers = machine.begin(Role::Answers, 0);
    machine.counted(1);
    let mut needs = machine.begin(Role::Needs, 0);
    // It was asked for frames: it answers behind the strangers, while the daemon does nothing.
    machine.counted(1);
    machine.stop();
    machine.go_on();
    machine.counted(1 + 2);
    std::thread::sleep(Duration::from_secs(2));
    machine.resume();
    machine.counted(1 + 2 + 2);
    assert!(!machine.log().contains("is killed"), "{}", machine.log());
    for (what, child) in [
        ("flood", &mut flood),
        ("answers", &mut answers),
        ("needs", &mut needs),
    ] {
        let ended = child.wait().unwrap();
        // A tenant that ends without leaving is ended.
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
fn a_tenant_that_reads_late_receives_all_that_it_waits_for() {
    let machine = Machine::start();
    let events = machine.read_late(1000);
    let (opened, closed) = events.split_last().unwrap();
    let expected: Vec<_> = (0..1000).map(DaemonEvent::Closed).collect();
    assert_eq!(closed, expected);
    let is_opened = matches!(opened, DaemonEvent::Opened { cookie: 5, .. });
    assert!(is_opened, "{opened:?}");
}

#[test]
fn a_contract_for_a_file_ends_with_its_process_though_another_has_its_connection() {
    let machine = Machine::start();
    let mut leader = machine.spawn(Role::Bequeaths, 0, 0, "leader");
    assert!(leader.wait().unwrap().success(), "{}", machine.log());
    machine.settles_without_tenants();
}

#[test]
fn the_daemon_writes_no_file_of_a_clients() {
    let why = Machine::start().refusal_of_writable();
    assert!(why.contains("open for reading"), "{why}");
}

/// A short run of a fixed seed; `make fuzz-daemon FOR=SECONDS SEED=NUMBER` runs others.
#[test]
fn honest_programs_page_beside_everything_hostile_at_once() {
    let said = |name, unsaid: &str| std::env::var(name).unwrap_or(unsaid.into());
    let time = fuzz::seconds(&said("SELFPAGE_FUZZ_FOR", "5s"));
    let seed = said("SELFPAGE_FUZZ_SEED", "1").parse().unwrap();
    let rounds = fuzz::run(time, seed);
    println!("{rounds} rounds of seed {seed}");
}

#[test]
fn a_linked_program_leaves_when_it_has_nothing_left_and_is_harmed_by_nobody() {
    let mut machine = Machine::start();
    let done = machine.play(Role::Linked, 0);
    assert_eq!(done, leaving::ROUNDS, "{}", machine.log());
    assert!(machine.log().contains("(linked) has left"));
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());

    // A daemon that dies before it has answered: the next lets it go.
    let mut guest = machine.begin(Role::Interrupted, 0);
    machine.counted(1);
    machine.stop();
    machine.go_on();
    std::thread::sleep(Duration::from_millis(300));
    machine.restart();
    let ended = guest.wait().unwrap();
    assert!(
        ended.success(),
        "{}{}",
        machine.last_errors(),
        machine.log()
    );
    machine.counted(2);
    assert_eq!(machine.play(Role::Whole, 0), 1, "{}", machine.log());
}

#[test]
fn the_daemon_polls_no_bell_of_a_tenant_that_has_left() {
    let machine = Machine::start();
    machine.serves();
    let before = machine.polled();
    let mut tenant = machine.begin(Role::Bells, 0);
    machine.counted(leaving::BELLS);
    let polled = machine.polled();
    tenant.kill().unwrap();
    tenant.wait().unwrap();
    // Its connection.
    assert!(polled <= before + 1, "{polled} {before} {}", machine.log());
}
