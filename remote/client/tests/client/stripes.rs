//! Stripes over real servers: what the policy decides is carried out, and every page is the one that was written.

use crate::interposer::{Direction, Network, Verdict};
use crate::space::Space;
use crate::{ETIMEDOUT, PagingServer, wait_until};
use std::net::SocketAddr;
use std::time::Duration;

pub const MEMBERS: u64 = 4;
/// Pages of a request, and requests of an object: its pages are no whole number of a copy's runs.
pub const RUN: usize = 10;
const RUNS: u64 = 7;

/// The runs of an object. Of the pages of one place some members have none.
pub fn runs(object: u64) -> impl Iterator<Item = u64> {
    let first = object * (selfpage_remote_client::OBJECT_PAGES + 5);
    (0..RUNS).map(move |run| first + run * RUN as u64)
}

/// Servers with a stripe of four objects that are partly written.
pub fn striped(servers: u64) -> (Vec<PagingServer>, Space) {
    striped_in(servers, Space::striped)
}

/// Likewise, in a space of some kind.
pub fn striped_in(
    servers: u64,
    space: impl FnOnce(u64, &[SocketAddr]) -> Space,
) -> (Vec<PagingServer>, Space) {
    let servers: Vec<_> = (1..=servers).map(PagingServer::start).collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(PagingServer::address).collect();
    let mut space = space(MEMBERS, &addresses);
    write(&mut space);
    wait_until("there is a stripe", || space.progress.stripes_made() > 0);
    // The second copies go with the next ticks.
    std::thread::sleep(Duration::from_millis(500));
    (servers, space)
}

pub fn write(space: &mut Space) {
    for object in 0..MEMBERS {
        for from in runs(object) {
            space.write(from, RUN, 1 + object as u8).unwrap();
        }
    }
}

/// Reads what was written there, and what never was.
pub fn check(space: &mut Space) {
    for object in 0..MEMBERS {
        for from in runs(object) {
            let expected = vec![1 + object as u8; RUN];
            assert_eq!(space.read(from, RUN), Ok(expected), "object {object}");
        }
        let after = runs(object).last().unwrap_or(0) + RUN as u64;
        assert_eq!(space.read(after, 2), Ok(vec![0; 2]), "object {object}");
    }
}

#[test]
fn each_server_of_a_stripe_may_end() {
    for lost in 0..5 {
        let (mut servers, mut space) = striped(5);
        servers.remove(lost);
        check(&mut space);
    }
}

#[test]
fn any_two_servers_of_a_stripe_with_two_parities_may_end_at_once() {
    for (first, second) in [(0, 1), (1, 4), (2, 5), (4, 5), (0, 5)] {
        let (mut servers, mut space) = striped(6);
        servers.remove(second);
        servers.remove(first);
        check(&mut space);
    }
}

#[test]
fn a_write_of_a_stripe_is_read_again_after_any_server_ends() {
    let (mut servers, mut space) = striped(6);
    for from in runs(1).step_by(2) {
        space.write(from, RUN, 9).unwrap();
    }
    servers.remove(3);
    for (at, from) in runs(1).enumerate() {
        let expected = if at % 2 == 0 { 9 } else { 2 };
        assert_eq!(space.read(from, RUN), Ok(vec![expected; RUN]));
    }
    let others: Vec<u64> = runs(0).chain(runs(2)).chain(runs(3)).collect();
    for from in others {
        assert!(space.read(from, RUN).is_ok());
    }
}

/// Its copies may differ, and a parity of one is wrong beside the other.
#[test]
fn an_object_of_which_a_write_failed_is_in_no_stripe_until_the_page_is_written_again() {
    let mut servers: Vec<_> = (1..=5).map(PagingServer::start).collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(PagingServer::address).collect();
    // There are too few servers for a stripe.
    servers[4].interposer.set_network(Network::Partitioned);
    let mut space = Space::striped(MEMBERS, &addresses);
    write(&mut space);
    for server in &servers {
        server.interposer.set(|direction, _, _| match direction {
            Direction::ToServer => Verdict::Forward,
            Direction::ToClient => Verdict::Drop,
        });
    }
    assert_eq!(space.write(0, 1, 9), Err(ETIMEDOUT));
    servers.iter().for_each(|server| server.interposer.clear());
    servers[4].interposer.set_network(Network::Connected);
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(space.progress.stripes_made(), 0);

    space.write(0, 1, 1).unwrap();
    wait_until("there is a stripe", || space.progress.stripes_made() > 0);
    std::thread::sleep(Duration::from_millis(500));
    servers.remove(0);
    check(&mut space);
}
