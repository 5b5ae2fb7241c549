//! Domains of images and of forks' children: their admission, the wait for one, and their reclaim.

// A refusal carries its text in place.
#![allow(clippy::result_large_err)]

mod common;
#[path = "common/processes.rs"]
mod processes;

use common::{port, start};
use frames::{Contract, DomainId};
use link::client::JoinError;
use link::handshake::{Hello, ProgramPlace};
use processes::{OWN_IMAGE, child, end, join, joined, sleep, until};
use rustix::process::Pid;
use std::time::{Duration, Instant};
use supervisor::{Supervisor, TreeEvent};

/// A child's exit status.
fn status_of(child: Pid) -> i32 {
    let mut status = 0;
    // SAFETY: our own child and a local word.
    unsafe { libc::waitpid(child.as_raw_nonzero().get(), &mut status, 0) };
    libc::WEXITSTATUS(status)
}

#[test]
fn a_forks_child_takes_the_slot_its_parent_reserved() {
    let mut supervisor = start(1024, None);
    let port = port(&supervisor, true);
    let parent = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    let parent = parent.join().unwrap().unwrap();
    let slot = parent.welcome.domain;
    let own = supervisor
        .ledger()
        .client(DomainId::from_raw(slot))
        .unwrap();
    let child = own.admit_child(Contract { g: 16, x: 1024 }).unwrap().raw();
    let member = join(
        port,
        Hello::Fork {
            parent: slot,
            child,
            program: ProgramPlace::default(),
        },
    );
    until(&mut supervisor, |h| h.iter().any(joined));
    assert_eq!(member.join().unwrap().unwrap().welcome.domain, child);
    let again = join(
        port,
        Hello::Fork {
            parent: slot,
            child,
            program: ProgramPlace::default(),
        },
    );
    until(&mut supervisor, |_| again.is_finished());
    assert!(
        matches!(again.join().unwrap(), Err(JoinError::Refused(_))),
        "a reservation serves once"
    );
}

#[test]
fn an_image_beyond_the_contracts_minimums_waits_and_is_refused_with_the_figures() {
    let mut supervisor = start(link::MIN_FRAMES, None);
    let port = port(&supervisor, true);
    let only = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    let another = child(|| {
        let refused = port.join(OWN_IMAGE);
        let is_explained =
            matches!(refused, Err(JoinError::Refused(text)) if text.as_str().contains("--frames"));
        // SAFETY: ends the child.
        unsafe { libc::_exit(if is_explained { 7 } else { 8 }) };
    });
    let _only = only.join().unwrap().unwrap();
    until(&mut supervisor, |h| {
        h.iter()
            .any(|e| matches!(e, TreeEvent::Notice { text, .. } if text.contains("--frames")))
    });
    assert_eq!(status_of(another), 7);
}

#[test]
fn an_image_takes_the_domain_of_a_process_that_ends_meanwhile() {
    let mut supervisor = start(link::MIN_FRAMES, None);
    let port = port(&supervisor, true);
    let sleeper = || {
        child(|| {
            let _joined = port.join(OWN_IMAGE).unwrap();
            sleep();
        })
    };
    let first = sleeper();
    until(&mut supervisor, |h| h.iter().any(joined));
    let second = sleeper();
    let ahead = Instant::now();
    until(&mut supervisor, |_| {
        ahead.elapsed() > Duration::from_millis(200)
    });
    assert_eq!(supervisor.members().count(), 1, "there is one domain");
    end(first);
    until(&mut supervisor, |h| h.iter().any(joined));
    end(second);
}

#[test]
fn the_domain_of_a_child_that_is_killed_before_it_joins_is_reclaimed_while_its_parent_runs() {
    let mut supervisor = start(1024, None);
    let port = port(&supervisor, true);
    let parent = join(port, OWN_IMAGE);
    until(&mut supervisor, |h| h.iter().any(joined));
    let joined = parent.join().unwrap().unwrap();
    let parent = DomainId::from_raw(joined.welcome.domain);
    let before = supervisor.ledger().domains();
    let contract = Contract { g: 16, x: 1024 };
    let admit = |supervisor: &Supervisor| {
        let parent = supervisor.ledger().client(parent).unwrap();
        parent.admit_child(contract).unwrap()
    };
    let unborn = admit(&supervisor);
    let born = admit(&supervisor);
    let parent = supervisor.ledger().client(parent).unwrap().id();
    supervisor
        .ledger()
        .client(parent)
        .unwrap()
        .let_go_of_child(born);
    until(&mut supervisor, |_| true);
    let begun = Instant::now();
    while supervisor.ledger().domains() > before + 1 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(supervisor.next_timeout().min(Duration::from_millis(50)));
        supervisor.dispatch();
    }
    assert!(supervisor.ledger().stats(born).is_none());
    assert!(
        supervisor.ledger().stats(unborn).is_some(),
        "its parent may be about to fork it"
    );
}
