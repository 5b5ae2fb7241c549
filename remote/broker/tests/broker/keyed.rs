//! Control links with the keys of a cluster.

use crate::hosts::{Client, Host, runtime, wait_until};
use crate::wait_for_cluster;
use remote_keys::Keyring;
use remote_policy::identity::{HostId, Incarnation};
use remote_wire::identity::id_of_key;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use selfpage_remote_broker::client::{PermitAnswer, find_cluster};
use selfpage_remote_broker::link::ControlLinks;
use selfpage_remote_broker::protocol::Request;
use std::net::TcpStream;
use std::sync::Arc;
use tempfile::TempDir;

/// The keyrings of a cluster's members, in folders of their own.
fn keyrings<const COUNT: usize>() -> ([Arc<Keyring>; COUNT], TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let open = |at: usize| Arc::new(Keyring::open(&folder.path().join(at.to_string())).unwrap());
    let keyrings: [_; COUNT] = std::array::from_fn(open);
    for keyring in &keyrings {
        keyring.set_own("test", None).unwrap();
    }
    for keyring in &keyrings {
        for other in &keyrings {
            let theirs = other.members().unwrap();
            keyring.update(|list| list.merge(&theirs)).unwrap();
        }
    }
    (keyrings, folder)
}

/// Returns true if a list has the address at which a member's host serves.
fn has_address(of: &Keyring, member: &Keyring, host: &Host) -> bool {
    let members = of.members().unwrap();
    let address = members.get(&member.fingerprint()).unwrap().address.clone();
    address == Some(host.paging().to_string())
}

#[test]
fn members_have_one_broker_which_issues_permits() {
    let ([one, other], _folder) = keyrings::<2>();
    let first = Host::with_keys(&[], Some(one));
    let second = Host::with_keys(&[first.control().to_string()], Some(other));
    wait_for_cluster(&[&first, &second]);
    let mut client = Client::new(&second);
    assert!(matches!(client.allocate(10), PermitAnswer::Granted(_)));
}

#[test]
fn a_member_acts_in_the_name_of_no_other_where_that_was_never_used_either() {
    let ([one, other], _folder) = keyrings::<2>();
    let other = other.fingerprint();
    let host = Host::with_keys(&[], Some(one));
    let client = Client::new(&host);
    let ask = |key| {
        let name = Incarnation::new(id_of_key(HostId(1 << 20), key), 1, 1);
        client.ask_as(Some(name), &Request::FindBroker { others: Vec::new() })
    };
    assert!(ask(Some(other)).is_err());
    assert!(ask(host.key()).is_ok());
}

#[test]
fn members_that_joined_before_they_served_share_their_lists_when_they_serve() {
    let ([one, other], _folder) = keyrings::<2>();
    let ([third], _third) = keyrings::<1>();
    let joined = third.members().unwrap();
    one.update(|list| list.merge(&joined)).unwrap();
    let first = Host::with_keys(&[], Some(Arc::clone(&one)));
    let second = Host::with_keys(&[first.control().to_string()], Some(Arc::clone(&other)));
    wait_until("each has the other's address", || {
        has_address(&one, &other, &second) && has_address(&other, &one, &first)
    });
    assert!(other.is_member(&third.fingerprint()));
}

#[test]
fn hosts_that_do_not_know_a_new_members_key_ask_for_it() {
    let ([one, other], _folder) = keyrings::<2>();
    let ([third], _third) = keyrings::<1>();
    let first = Host::with_keys(&[], Some(Arc::clone(&one)));
    let second = Host::with_keys(&[first.control().to_string()], Some(Arc::clone(&other)));
    wait_for_cluster(&[&first, &second]);
    // They share no lists before the minute is over.
    wait_until("each has the other's address", || {
        has_address(&one, &other, &second) && has_address(&other, &one, &first)
    });
    // It joins, which the second is not told of.
    let (joined, members) = (third.members().unwrap(), one.members().unwrap());
    one.update(|list| list.merge(&joined)).unwrap();
    third.update(|list| list.merge(&members)).unwrap();
    let key = third.fingerprint();
    let _third = Host::with_keys(&[first.control().to_string()], Some(third));
    wait_until("the second knows its key", || other.is_member(&key));
}

#[test]
fn a_host_that_is_no_member_reaches_no_broker() {
    let ([member], _folder) = keyrings::<1>();
    let ([stranger], _other) = keyrings::<1>();
    let known = member.members().unwrap();
    stranger.update(|list| list.merge(&known)).unwrap();
    let host = Host::with_keys(&[], Some(member));
    let runtime = runtime();
    for (links, has_key) in [
        (ControlLinks::new(Some(stranger)).unwrap(), true),
        (ControlLinks::in_clear(), false),
    ] {
        let found = runtime.block_on(find_cluster(&links, host.control(), &[]));
        let why = found.unwrap_err();
        assert_eq!(why.is_unknown_key(), has_key, "{why}");
    }
}

#[test]
fn a_member_sends_no_requests_in_the_name_of_another() {
    let ([one, other], _folder) = keyrings::<2>();
    let host = Host::with_keys(&[], Some(one));
    wait_for_cluster(&[&host]);
    let mut client = Client::new(&host);
    assert!(matches!(client.allocate(10), PermitAnswer::Granted(_)));
    let others = ControlLinks::new(Some(other)).unwrap();
    let request = client.allocation(10);
    assert!(client.ask_by(&others, &request).is_err());
}

#[test]
fn a_member_that_is_removed_is_not_answered_any_more() {
    let ([one, other], _folder) = keyrings::<2>();
    let host = Host::with_keys(&[], Some(Arc::clone(&one)));
    wait_for_cluster(&[&host]);
    let links = ControlLinks::new(Some(Arc::clone(&other))).unwrap();
    let runtime = runtime();
    let find = || runtime.block_on(find_cluster(&links, host.control(), &[]));
    assert!(find().is_ok());
    one.update(|list| list.remove(other.fingerprint())).unwrap();
    assert!(find().is_err());
}

#[test]
fn peers_that_send_no_introduction_keep_no_member_out() {
    let ([member], _folder) = keyrings::<1>();
    let host = Host::with_keys(&[], Some(Arc::clone(&member)));
    // Both ends of each connection are here.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    // More than there may be: the first make room for the last.
    let connect = |_| TcpStream::connect(host.control()).unwrap();
    let _idle: Vec<_> = (0..1100).map(connect).collect();
    let links = ControlLinks::new(Some(member)).unwrap();
    let runtime = runtime();
    // A member asks again where a busy machine was late.
    wait_until("the cluster is found", || {
        let found = runtime.block_on(find_cluster(&links, host.control(), &[]));
        found.is_ok()
    });
}
