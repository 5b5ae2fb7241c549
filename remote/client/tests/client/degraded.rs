//! Reads whose server ended, or is silent: another copy answers them, or the rest of a stripe.

use crate::interposer::Network;
use crate::space::Space;
use crate::stripes::{check, striped, striped_in};
use crate::{PagingServer, space_on};

#[test]
fn a_read_of_a_stripe_whose_server_ended_is_answered_by_the_others() {
    let mut degraded = 0;
    for lost in 0..5 {
        let (mut servers, mut space) = striped(5);
        servers.remove(lost);
        check(&mut space);
        degraded += space.progress.degraded_reads();
    }
    assert!(degraded > 0);
}

#[test]
fn a_read_of_an_encrypted_stripe_whose_servers_ended_is_answered_by_the_others() {
    let (mut servers, mut space) = striped_in(6, Space::striped_and_encrypted);
    let mut degraded = 0;
    for _ in 0..2 {
        servers.remove(1);
        check(&mut space);
        degraded = space.progress.degraded_reads();
    }
    assert!(degraded > 0);
}

#[test]
fn a_read_whose_server_is_silent_goes_to_the_other_copy() {
    let mut hedged = 0;
    for silent in 0..2 {
        let servers = [PagingServer::start(1), PagingServer::start(2)];
        let mut space = space_on(&servers);
        space.write(0, 32, 1).unwrap();
        assert_eq!(space.read(0, 32), Ok(vec![1; 32]));
        let interposer = &servers[silent].interposer;
        interposer.set_network(Network::Partitioned);
        for first in 0..16 {
            assert_eq!(space.read(first * 2, 2), Ok(vec![1; 2]));
        }
        // At once: no server was given up for it.
        assert_eq!(space.progress.copies_made(), 0);
        interposer.set_network(Network::Connected);
        space.write(0, 32, 2).unwrap();
        assert_eq!(space.read(0, 32), Ok(vec![2; 32]));
        hedged += space.progress.hedged_reads();
    }
    assert!(hedged > 0);
}

#[test]
fn a_read_of_a_stripe_whose_server_is_silent_is_answered_by_the_others() {
    let (servers, mut space) = striped(5);
    for server in &servers {
        server.interposer.set_network(Network::Partitioned);
        check(&mut space);
        server.interposer.set_network(Network::Connected);
        check(&mut space);
    }
    assert!(space.progress.degraded_reads() > 0);
}
