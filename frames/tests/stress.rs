//! Many threads, many processes, and kill -9.

mod common;

use common::audit;
use fastrand::Rng;
use frames::{Contract, DomainId, DomainPhase, Frame, Ledger, LimitControl, State};
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const TOTAL: u32 = 500;

/// Pages and releases frames on demand, like a domain under pressure, until stopped. `claims` has
/// a word for each frame: the one domain that uses it.
fn work(ledger: &Ledger, id: DomainId, seed: u64, claims: Option<&[AtomicU32]>, stop: &AtomicBool) {
    let client = ledger.client(id).unwrap();
    let mut random = Rng::with_seed(seed);
    let mut held: Vec<Frame> = Vec::new();
    let mine = |frame: Frame, from: u32, to: u32| {
        if let Some(claims) = claims {
            assert_eq!(
                claims[frame.0 as usize].swap(to, SeqCst),
                from,
                "one user a frame"
            );
        }
    };
    let me = seed as u32 + 1;
    while !stop.load(SeqCst) {
        match random.u32(..16) {
            0..=6 => match client.take() {
                Some(frame) => {
                    mine(frame, 0, me);
                    held.push(frame);
                }
                None if random.u32(..4) == 0 => {
                    ledger.demand(id, 1 + random.u32(..3));
                }
                None => (),
            },
            7..=10 if !held.is_empty() => {
                let frame = held.swap_remove(random.usize(..held.len()));
                mine(frame, me, 0);
                client.put(frame).unwrap();
            }
            11 | 12 if !held.is_empty() => {
                let frame = held[random.usize(..held.len())];
                let state = [State::Mapped, State::Standby, State::Nailed][random.usize(..3)];
                client.mark(frame, state).unwrap();
            }
            13 => {
                client.release(random.u32(..8));
            }
            14 => {
                let asked = client.demanded();
                for frame in held.drain(..(asked as usize).min(held.len())) {
                    mine(frame, me, 0);
                    client.put(frame).unwrap();
                }
                client.release_demanded(asked);
            }
            15 if random.u32(..16) == 0 => {
                if let Ok(child) = client.admit_child(Contract { g: 1, x: 100 }) {
                    let _ = client.reserve_for_child(child, random.u32(..20));
                    client.dismiss_child(child);
                }
            }
            _ => (),
        }
    }
    for frame in held {
        mine(frame, me, 0);
        client.put(frame).unwrap();
    }
}

#[test]
fn threads_of_several_domains_never_share_a_frame_and_leave_the_counts_right() {
    let ledger = &Ledger::create(TOTAL, 64).unwrap().0;
    let claims = &(0..TOTAL).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let stop = &AtomicBool::new(false);
    let domains: Vec<_> = (0..4)
        .map(|n| {
            ledger
                .admit(Contract {
                    g: 50 * n,
                    x: 150 + 50 * n,
                })
                .unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let id = domains[seed % 4];
            scope.spawn(move || work(ledger, id, seed as u64, Some(claims), stop));
        }
        std::thread::sleep(Duration::from_millis(700));
        stop.store(true, SeqCst);
    });
    audit(ledger);
    for id in domains {
        ledger.retire(id);
    }
    assert_eq!(
        (ledger.free(), ledger.guaranteed(), ledger.domains()),
        (TOTAL, 0, 0)
    );
}

const LEDGER: &str = "FRAMES_TEST_LEDGER";
const DOMAIN: &str = "FRAMES_TEST_DOMAIN";

/// Not a test of its own: a process of the next test.
#[test]
fn a_process_of_the_tree() {
    let (Ok(path), Ok(domain)) = (std::env::var(LEDGER), std::env::var(DOMAIN)) else {
        return;
    };
    let ledger = &Ledger::attach(
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap(),
    )
    .unwrap();
    let domain: u32 = domain.parse().unwrap();
    let id = DomainId::from_raw(domain);
    ledger.adopt(id).unwrap();
    let stop = &AtomicBool::new(false);
    let parent = std::os::unix::process::parent_id();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || work(ledger, id, u64::from(domain) * 2 + seed, None, stop));
        }
        // Ends with the test, should the test fail.
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn all_frames_of_processes_killed_at_any_time_are_reclaimed() {
    let (ledger, fd) = Ledger::create_limited(TOTAL, TOTAL, 64).unwrap();
    let mut control = LimitControl::attach(&fd).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let spawn = |g: u32| -> (DomainId, Child) {
        let contract = Contract { g, x: TOTAL / 2 };
        let id = ledger.admit(contract).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_of_the_tree"])
            .env(LEDGER, &path)
            .env(DOMAIN, id.raw().to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while ledger.stats(id).unwrap().phase == DomainPhase::Nascent {
            std::thread::sleep(Duration::from_millis(1));
        }
        (id, child)
    };
    let kill = |(id, mut child): (DomainId, Child)| {
        child.kill().unwrap();
        assert!(
            child.wait().unwrap().code().is_none(),
            "it was working until it was killed"
        );
        ledger.retire(id);
        // No child that it admitted was forked.
        let orphaned = ledger
            .all_stats()
            .filter(|view| view.phase == DomainPhase::Nascent && !view.has_creator);
        for orphan in orphaned.map(|view| view.id).collect::<Vec<_>>() {
            ledger.retire(orphan);
        }
    };
    let mut tree: Vec<_> = (0..4).map(|n| spawn(30 * n)).collect();
    let mut random = Rng::with_seed(77);
    for round in 0..30 {
        std::thread::sleep(Duration::from_micros(u64::from(8000 + random.u32(..5000))));
        kill(tree.swap_remove(random.usize(..4)));
        tree.push(spawn(30 * (round % 4)));
        // Meanwhile the limit moves as well.
        match round % 3 {
            0 => control.raise(random.u32(..TOTAL)),
            _ => control.take_unused(random.u32(..TOTAL / 2)),
        };
        assert!(ledger.owned() <= control.limit());
        // No count of a domain exceeds its bounds, even while all are working.
        for view in ledger.all_stats() {
            assert!(view.n <= view.contract.x, "{view:?}");
        }
    }
    tree.into_iter().for_each(kill);
    assert!(ledger.recount());
    control.raise(TOTAL);
    audit(&ledger);
    assert_eq!(
        (ledger.free(), ledger.guaranteed(), ledger.domains()),
        (TOTAL, 0, 0)
    );
    // No remainder keeps one domain from owning every frame.
    let id = ledger.admit(Contract::from(TOTAL)).unwrap();
    let client = ledger.client(id).unwrap();
    assert_eq!((0..).map_while(|_| client.take()).count(), TOTAL as usize);
    audit(&ledger);
}
