//! A disk behind paging servers that have too little room, do not answer, or answer a client that is killed.

use super::{KILLS, PagingServer, UNDER_WAY, clients_of, launch, signal, wait_until_it_pages};
use e2e::Sandbox;
use e2e::contract::{Contract, MIB, Under};
use e2e::outcome::number;
use e2e::verdict::{Verdict, ensure, failed};
use e2e::{Outcome, Running};
use libtest_mimic::Trial;
use rustix::process::Signal;
use std::time::Duration;

/// Pages at a server that lends less than the program writes, and in the file.
const AT_BOTH: &str = "16M";
/// Longer than a write waits for a server, and than a client is started again.
const PAUSE: Duration = Duration::from_millis(1500);

pub fn trials() -> Vec<Trial> {
    trials![
        "remote":
        pages_beyond_the_room_of_servers_are_on_the_disk => || beyond("128M"),
        servers_get_their_part_of_the_pages_and_the_disk_the_others =>
            || beyond("ram:4M+remote:8M"),
        a_stopped_server_with_a_disk_behind_it_delays_pages_and_loses_none => server_stopped,
        a_client_with_a_disk_that_is_killed_under_load_loses_no_page => client_killed,
        a_disk_of_last_resort_that_cannot_be_made_is_named => refused,
    ]
}

/// The store, with a disk that has room for all pages.
fn contract(store: &str, sandbox: &Sandbox, server: &PagingServer) -> Contract {
    let store = match store.contains("remote:") {
        true => store.to_owned(),
        false => format!("remote:{store}"),
    };
    let folder = sandbox.path().display();
    Contract::new(8 * MIB)
        .with(&format!("--store={store}+disk:{folder},size=128M"))
        .with(&format!("--remote={}", server.address))
        .with("--insecure")
}

/// Its pages were right, and each had a place.
fn check(outcome: Outcome, expected: &str) -> Verdict {
    let outcome = outcome.succeeded()?;
    ensure(outcome.text() == expected, || {
        format!("{} instead of {expected}", outcome.text())
    })?;
    let Some(stats) = &outcome.stats else {
        return failed("no statistics were written");
    };
    for counter in ["write_failures", "unreadable_pages"] {
        let count = number(stats, &format!("/counters/{counter}"))?;
        ensure(count == 0, || format!("{count} {counter}"))?;
    }
    Ok(())
}

fn expected(sandbox: &Sandbox) -> Verdict<String> {
    Ok(launch(sandbox)?.run(&Under::Nothing)?.succeeded()?.text())
}

fn start(sandbox: &Sandbox, server: &PagingServer) -> Verdict<Running> {
    let contract = contract("128M", sandbox, server);
    let running = launch(sandbox)?.spawn(&Under::Contract(contract))?;
    wait_until_it_pages(&running)?;
    Ok(running)
}

fn beyond(store: &str) -> Verdict {
    let sandbox = Sandbox::new("remote_beyond")?;
    let server = PagingServer::lending(&sandbox, "one", AT_BOTH)?;
    let expected = expected(&sandbox)?;
    let contract = contract(store, &sandbox, &server);
    check(
        launch(&sandbox)?.run(&Under::Contract(contract))?,
        &expected,
    )?;
    sandbox.check_clean()
}

/// Its pages are read when it goes on.
fn server_stopped() -> Verdict {
    let sandbox = Sandbox::new("remote_disk_stopped")?;
    let server = PagingServer::start(&sandbox, "one")?;
    let expected = expected(&sandbox)?;
    let running = start(&sandbox, &server)?;
    signal(&server.child, Signal::STOP);
    std::thread::sleep(PAUSE);
    signal(&server.child, Signal::CONT);
    check(running.wait()?, &expected)
}

/// Pages are at both places, and written to both, each time that the client ends.
fn client_killed() -> Verdict {
    let sandbox = Sandbox::new("remote_disk_killed")?;
    let server = PagingServer::lending(&sandbox, "one", AT_BOTH)?;
    let expected = expected(&sandbox)?;
    let mut running = start(&sandbox, &server)?;
    let mut kills = 0;
    while kills < KILLS && !running.ended() {
        let [_, client] = clients_of(&running)?;
        client.kill();
        kills += 1;
        std::thread::sleep(UNDER_WAY);
    }
    println!("{kills} kills");
    ensure(kills > 0, || "the program ended before a kill".to_owned())?;
    check(running.wait()?, &expected)?;
    sandbox.check_clean()
}

fn refused() -> Verdict {
    let sandbox = Sandbox::new("remote_disk_refused")?;
    let server = PagingServer::start(&sandbox, "one")?;
    let launch = e2e::Launch::new(&sandbox, "/bin/true");
    let there = server.address.clone();
    for (store, words) in [
        (
            "remote:64M+disk:/no/such/folder/swap,size=64M",
            "no such directory",
        ),
        (
            "remote:64M+disk:/proc/swap,size=64M",
            "no file can be made there",
        ),
        ("remote:64M+disk:/var/tmp,size=4T", "free"),
        ("remote:64M+disk:/var/tmp,size=64M,grow", "written alone"),
        ("disk:/var/tmp,size=64M+remote:64M", "remote: before disk:"),
    ] {
        let contract = Contract::new(8 * MIB)
            .with(&format!("--store={store}"))
            .with(&format!("--remote={there}"))
            .with("--insecure");
        let outcome = launch.run(&Under::Contract(contract))?;
        ensure(
            !outcome.status.success() && outcome.stderr.contains(words),
            || format!("{store}: it says {:?}", outcome.stderr),
        )?;
    }
    sandbox.check_clean()
}
