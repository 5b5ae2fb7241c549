//! The manager against real guests: processes that hand their memory over.

#[path = "vm/bad_peers.rs"]
mod bad_peers;
#[path = "vm/common.rs"]
mod common;
#[path = "vm/contracts.rs"]
mod contracts;
#[path = "vm/failing_allocation.rs"]
mod failing_allocation;
#[path = "vm/fd_store.rs"]
mod fd_store;
#[path = "vm/guest.rs"]
mod guest;
#[path = "vm/kept_service.rs"]
mod kept_service;
#[path = "vm/kvm.rs"]
mod kvm;
#[path = "vm/objects.rs"]
mod objects;
#[path = "vm/pressure.rs"]
mod pressure;
#[path = "vm/restart.rs"]
mod restart;
#[path = "vm/restore.rs"]
mod restore;
#[path = "vm/saves.rs"]
mod saves;
#[path = "vm/systemd.rs"]
mod systemd;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|it| it == "guest") {
        return match args[2].strip_prefix("kvm-") {
            Some(kind) => kvm::main(kind, &args[3..]),
            None => guest::main(&args[2..]),
        };
    }
    match args.get(1).map(String::as_str) {
        Some("keeper") => return kept_service::main(&args[2..]),
        Some("pressure") => return pressure::main(&args[2..]),
        _ => {}
    }
    let mut trials = Vec::new();
    let tests = [
        restore::TESTS,
        objects::TESTS,
        contracts::TESTS,
        bad_peers::TESTS,
        saves::TESTS,
        restart::TESTS,
        fd_store::TESTS,
        pressure::TESTS,
        kvm::TESTS,
    ];
    for (name, test) in tests.into_iter().flatten() {
        let test = *test;
        trials.push(Trial::test(*name, move || {
            test();
            Ok::<(), Failed>(())
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A test by its name.
type Test = (&'static str, fn());
