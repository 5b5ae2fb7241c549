//! Requests over loopback sockets: what is served, and what is refused in which words.

use crate::common::{Client, QOS, Refused, incarnation, page, start, terminate};
use remote_policy::capacity::CapacityConfig;
use remote_policy::identity::Generation;
use remote_wire::control::{ControlReply, ControlRequest, ServerNotice, VoidCause};
use remote_wire::{Header, Kind, Status};
use selfpage_remote_server::{Server, ServerConfig, StartError};
use std::time::Duration;
use wired::PAGE;

fn status<T: std::fmt::Debug>(refused: Result<T, Refused>) -> Status {
    refused.unwrap_err().0
}

#[test]
fn a_page_read_is_the_page_last_written() {
    let server = start(64);
    let (mut client, object) = Client::with_object(server.address(), 1, 64);
    assert_eq!(
        client.read(object, 3, 2),
        Ok((vec![0, 0], page(0).repeat(2)))
    );
    client.write(object, 3, 1, &page(7)).unwrap();
    client.write(object, 4, 2, &page(8)).unwrap();
    let both = [page(7), page(8)].concat();
    assert_eq!(client.read(object, 3, 2), Ok((vec![1, 2], both)));
    client
        .write(object, 3, 3, &[page(1), page(2), page(3)].concat())
        .unwrap();
    assert_eq!(client.read(object, 5, 1), Ok((vec![3], page(3))));
    client.discard(object, 0, 64).unwrap();
    assert_eq!(client.read(object, 5, 1), Ok((vec![0], page(0))));
}

#[test]
fn an_older_write_changes_nothing_and_succeeds() {
    let server = start(64);
    let (mut client, object) = Client::with_object(server.address(), 1, 64);
    client.write(object, 0, 5, &page(5)).unwrap();
    client.write(object, 0, 4, &page(4)).unwrap();
    assert_eq!(client.read(object, 0, 1), Ok((vec![5], page(5))));
}

#[test]
fn a_permit_limits_the_pages_written_not_the_size_of_objects() {
    let server = start(8);
    let mut client = Client::greeted(server.address(), incarnation(1, 1));
    let sealed = client.allocate(1, 4, QOS).unwrap();
    client.present(sealed).unwrap();
    let object = client.object(1);
    client.create(object, sealed.permit.id, 1 << 40).unwrap();
    client
        .write(object, 1 << 39, 1, &page(1).repeat(4))
        .unwrap();
    assert_eq!(status(client.write(object, 0, 1, &page(1))), Status::Full);
    client
        .write(object, 1 << 39, 2, &page(2).repeat(4))
        .unwrap();
    let permit = sealed.permit.id;
    let enlarge = ControlRequest::Reallocate { permit, pages: 5 };
    client.control(&enlarge).unwrap();
    client.write(object, 0, 1, &page(1)).unwrap();
    let enlarge = ControlRequest::Reallocate { permit, pages: 9 };
    assert_eq!(status(client.control(&enlarge)), Status::NoPages);
    assert_eq!(status(client.allocate(2, 4, QOS)), Status::NoPages);
}

#[test]
fn requests_that_no_correct_client_makes_are_refused_with_words() {
    let server = start(64);
    let (mut client, object) = Client::with_object(server.address(), 1, 8);
    assert_eq!(status(client.read(object, 8, 1)), Status::Invalid);
    assert_eq!(status(client.read(object, u64::MAX, 2)), Status::Invalid);
    assert_eq!(
        status(client.write(object, 0, 0, &page(1))),
        Status::Invalid
    );
    for generation in [Generation(0), Generation(2)] {
        let other = Header {
            generation,
            ..client.header(Kind::Read, object, 0, 1)
        };
        assert_eq!(status(client.call(&other, &[])), Status::Generation);
    }
    let missing = client.object(2);
    assert_eq!(status(client.read(missing, 0, 1)), Status::NoObject);
    let mut stranger = Client::connect(server.address(), incarnation(2, 1));
    let refused = stranger.read(object, 0, 1).unwrap_err();
    assert_eq!(refused.0, Status::Invalid);
    assert!(refused.1.contains("Hello"), "{}", refused.1);
    let status_of_all = client.control(&ControlRequest::Status).unwrap();
    let ControlReply::Status(all) = status_of_all else {
        panic!("{status_of_all:?}");
    };
    assert_eq!(
        (all.owned_pages, all.granted_pages, all.used_pages),
        (64, 8, 0)
    );
    assert_eq!(all.clients[0].objects, [(object, 0)]);
}

#[test]
fn a_client_cannot_reach_another_clients_pages() {
    let server = start(64);
    let (mut owner, object) = Client::with_object(server.address(), 1, 8);
    owner.write(object, 0, 1, &page(9)).unwrap();
    let (mut other, _) = Client::with_object(server.address(), 2, 8);
    assert_eq!(status(other.read(object, 0, 1)), Status::NoObject);
    assert_eq!(
        status(other.write(object, 0, 2, &page(1))),
        Status::NoObject
    );
    assert_eq!(status(other.discard(object, 0, 1)), Status::NoObject);
    other.control(&terminate(object)).unwrap();
    let sealed = owner.allocate(2, 8, QOS).unwrap();
    assert_eq!(status(other.present(sealed)), Status::NoPermit);
    let release = ControlRequest::Release(sealed.permit.id);
    assert_eq!(status(other.control(&release)), Status::NoPermit);
    assert_eq!(owner.read(object, 0, 1), Ok((vec![1], page(9))));
}

#[test]
fn a_permit_has_to_be_presented_on_each_connection() {
    let server = start(64);
    let mut first = Client::greeted(server.address(), incarnation(1, 1));
    let sealed = first.allocate(1, 8, QOS).unwrap();
    let object = first.object(1);
    assert_eq!(
        status(first.create(object, sealed.permit.id, 8)),
        Status::NoPermit
    );
    first.present(sealed).unwrap();
    first.create(object, sealed.permit.id, 8).unwrap();
    first.write(object, 0, 1, &page(1)).unwrap();
    let mut second = Client::greeted(server.address(), incarnation(1, 1));
    assert_eq!(status(second.read(object, 0, 1)), Status::NoPermit);
    second.present(sealed).unwrap();
    assert_eq!(second.read(object, 0, 1), Ok((vec![1], page(1))));
}

#[test]
fn a_late_request_to_end_an_earlier_copy_leaves_the_one_that_is_there() {
    let server = start(64);
    let (mut client, object) = Client::with_object(server.address(), 1, 8);
    client.write(object, 0, 1, &page(1)).unwrap();
    let before = Generation(1);
    let late = ControlRequest::Terminate { object, before };
    client.control(&late).unwrap();
    assert_eq!(client.read(object, 0, 1), Ok((vec![1], page(1))));
    client.control(&terminate(object)).unwrap();
    assert_eq!(status(client.read(object, 0, 1)), Status::NoObject);
}

#[test]
fn forged_permits_and_those_of_another_incarnation_are_refused() {
    let before = start(64);
    let mut client = Client::greeted(before.address(), incarnation(1, 1));
    let old = client.allocate(1, 8, QOS).unwrap();
    let mut forged = old;
    forged.permit.granted_pages = 64;
    assert_eq!(status(client.present(forged)), Status::NoPermit);
    client.present(old).unwrap();
    drop(before);
    let after = start(64);
    let mut client = Client::greeted(after.address(), incarnation(1, 1));
    // The same number, the same pages: only the seal tells them apart.
    client.allocate(1, 8, QOS).unwrap();
    assert_eq!(status(client.present(old)), Status::NoPermit);
}

#[test]
fn a_client_that_restarts_loses_its_permits_and_their_pages() {
    let server = start(8);
    let (mut before, object) = Client::with_object(server.address(), 1, 8);
    before.write(object, 0, 1, &page(1).repeat(8)).unwrap();
    let mut after = Client::greeted(server.address(), incarnation(1, 2));
    assert_eq!(status(after.read(object, 0, 1)), Status::NoObject);
    let refused = before.read(object, 0, 1).unwrap_err();
    assert!(refused.1.contains("ended"), "{}", refused.1);
    let void = |notice: &ServerNotice| {
        matches!(
            notice,
            ServerNotice::Void {
                cause: VoidCause::Restarted,
                ..
            }
        )
    };
    assert!(before.notices.iter().any(void), "{:?}", before.notices);
    after.allocate(1, 8, QOS).unwrap();
}

#[test]
fn a_lease_that_runs_out_frees_the_pages() {
    let mut config = crate::common::config(8);
    config.capacity.lease = Duration::from_millis(200);
    let server = Server::start(config).unwrap();
    let (mut gone, object) = Client::with_object(server.address(), 1, 8);
    gone.write(object, 0, 1, &page(1)).unwrap();
    drop(gone);
    let mut other = Client::greeted(server.address(), incarnation(2, 1));
    let granted = (2..1000).find_map(|number| {
        std::thread::sleep(Duration::from_millis(20));
        other.allocate(number, 8, QOS).ok()
    });
    assert_eq!(granted.map(|sealed| sealed.permit.granted_pages), Some(8));
}

#[test]
fn released_and_terminated_pages_can_be_promised_again() {
    let server = start(8);
    let (mut client, object) = Client::with_object(server.address(), 1, 8);
    client.write(object, 0, 1, &page(1).repeat(8)).unwrap();
    client.control(&terminate(object)).unwrap();
    client.control(&terminate(object)).unwrap();
    assert_eq!(status(client.read(object, 0, 1)), Status::NoObject);
    let ControlReply::Status(all) = client.control(&ControlRequest::Status).unwrap() else {
        panic!("another reply");
    };
    assert_eq!((all.used_pages, all.granted_pages), (0, 8));
    let sealed = client.allocate(1, 8, QOS).unwrap();
    let release = ControlRequest::Release(sealed.permit.id);
    client.control(&release).unwrap();
    assert_eq!(status(client.present(sealed)), Status::NoPermit);
    client.allocate(2, 8, QOS).unwrap();
}

#[test]
fn pages_of_a_permit_that_is_not_presented_can_be_promised_again() {
    let capacity = CapacityConfig {
        lease: Duration::from_secs(1),
        ..ServerConfig::default_capacity()
    };
    let config = crate::common::config(16);
    let server = Server::start(ServerConfig { capacity, ..config }).unwrap();
    let (mut client, object) = Client::with_object(server.address(), 1, 8);
    client.write(object, 0, 1, &page(1)).unwrap();
    // As where the broker had passed the server over before the answer came.
    client.allocate(2, 8, QOS).unwrap();
    assert_eq!(status(client.allocate(3, 8, QOS)), Status::NoPages);
    let is_granted = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        client.allocate(3, 8, QOS).is_ok()
    });
    assert!(is_granted);
    assert_eq!(client.read(object, 0, 1), Ok((vec![1], page(1))));
}

/// Has the server own so many pages, as if the host could not spare more.
fn set_spare_pages(server: &Server, pages: u64) {
    let (sender, done) = std::sync::mpsc::channel();
    server.handle().with_issuer(move |issuer| {
        issuer.on_usage(pages);
        sender.send(()).unwrap();
    });
    done.recv().unwrap();
}

#[test]
fn a_permit_that_shrank_while_its_client_was_away_is_returned_as_it_is() {
    let server = start(100);
    let mut client = Client::greeted(server.address(), incarnation(1, 1));
    let sealed = client.allocate(1, 90, QOS).unwrap();
    assert_eq!(client.present(sealed), Ok(ControlReply::Done));
    drop(client);
    set_spare_pages(&server, 50);
    let mut client = Client::greeted(server.address(), incarnation(1, 1));
    let Ok(ControlReply::Permit(as_it_is)) = client.present(sealed) else {
        panic!("it is not the one that was presented");
    };
    assert_eq!(as_it_is.permit.granted_pages, 50);
    assert_eq!(client.present(as_it_is), Ok(ControlReply::Done));
}

#[test]
fn memory_that_the_host_needs_is_taken_from_permits() {
    let server = start(100);
    let (mut client, object) = Client::with_object(server.address(), 1, 90);
    client.write(object, 0, 1, &page(1).repeat(10)).unwrap();
    set_spare_pages(&server, 50);
    client.control(&ControlRequest::Renew).unwrap();
    let rewritten = client.notices.iter().find_map(|notice| match notice {
        ServerNotice::Rewritten(sealed) => Some(sealed.permit.granted_pages),
        _ => None,
    });
    assert_eq!(rewritten, Some(50));
    client.write(object, 10, 1, &page(1).repeat(32)).unwrap();
    assert_eq!(
        status(client.write(object, 42, 1, &page(1).repeat(9))),
        Status::Full
    );
    client.write(object, 42, 1, &page(1).repeat(8)).unwrap();
    set_spare_pages(&server, 20);
    client.control(&ControlRequest::Renew).unwrap();
    let abdicate = client.notices.contains(&ServerNotice::Abdicate(object));
    assert!(abdicate, "{:?}", client.notices);
    assert_eq!(client.read(object, 49, 1), Ok((vec![1], page(1))));
}

#[test]
fn a_client_that_missed_a_revocation_receives_it_when_it_renews_its_lease() {
    let capacity = CapacityConfig {
        notice: Duration::ZERO,
        ..ServerConfig::default_capacity()
    };
    let config = crate::common::config(8);
    let server = Server::start(ServerConfig { capacity, ..config }).unwrap();
    let connect = || Client::greeted(server.address(), incarnation(1, 1));
    let mut client = connect();
    let sealed = client.allocate(1, 8, QOS).unwrap();
    client.present(sealed).unwrap();
    let object = client.object(1);
    client.create(object, sealed.permit.id, 8).unwrap();
    client.write(object, 0, 1, &page(1).repeat(8)).unwrap();
    set_spare_pages(&server, 4);
    let is_revoked = |client: &mut Client| {
        let is_notice = |notice: &ServerNotice| matches!(notice, ServerNotice::Revoke { .. });
        (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            client.control(&ControlRequest::Renew).unwrap();
            client.notices.iter().any(is_notice)
        })
    };
    assert!(is_revoked(&mut client));
    // It has lost its connection, and that notice with it.
    drop(client);
    let mut client = connect();
    client.present(sealed).unwrap();
    assert!(is_revoked(&mut client));
}

#[test]
fn a_second_server_on_the_port_says_so() {
    let first = start(8);
    let config = ServerConfig {
        listen: first.address(),
        ..crate::common::config(8)
    };
    let Err(why) = Server::start(config) else {
        panic!("two servers at one address");
    };
    assert!(matches!(why, StartError::InUse(_)), "{why}");
    assert!(why.to_string().contains("another server"), "{why}");
}

#[test]
fn a_server_that_ends_closes_its_connections() {
    let server = start(PAGE as u64);
    let (mut client, _) = Client::with_object(server.address(), 1, 8);
    server.handle().stop();
    server.join().unwrap();
    assert_eq!(client.receive(), None);
}
