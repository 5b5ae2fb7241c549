//! Hosts join a cluster, and leave it, over real sockets.

use selfpage_remote_keys::invitation::Invitation;
use selfpage_remote_keys::join::{Inviter, JoinError, Joined, join};
use selfpage_remote_keys::sharing::{answer, share_with};
use selfpage_remote_keys::{
    Handshake, HandshakeError, HostKey, Keyring, KeyringError, Protocol, Trust, server_config,
};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const LIFE: Duration = Duration::from_secs(20);

struct Host {
    keyring: Arc<Keyring>,
    _folder: TempDir,
}

fn host(name: &str) -> Host {
    let folder = tempfile::tempdir().unwrap();
    let keyring = Keyring::open(folder.path()).unwrap();
    keyring.set_own(name, None).unwrap();
    Host {
        keyring: Arc::new(keyring),
        _folder: folder,
    }
}

fn invite(by: &Host, life: Duration) -> (Invitation, JoinHandle<Option<Joined>>) {
    let mut inviter = Inviter::open(by.keyring.clone(), LOOPBACK, &[], life).unwrap();
    inviter.on_failure = |_, _| {};
    let invitation = inviter.invitation().to_string().parse().unwrap();
    (invitation, std::thread::spawn(move || inviter.wait().ok()))
}

fn knows(one: &Host, other: &Host) -> bool {
    one.keyring.is_member(&other.keyring.fingerprint())
}

#[test]
fn a_host_that_is_invited_joins_and_each_knows_the_other_and_the_members_before() {
    let [near, far, third] = ["near", "far", "third"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    let joined = join(&far.keyring, &invitation).unwrap();
    assert_eq!((joined.name.as_str(), joined.members), ("near", 2));
    assert_eq!(waiting.join().unwrap().unwrap().name, "far");
    let (invitation, waiting) = invite(&far, LIFE);
    join(&third.keyring, &invitation).unwrap();
    assert!(waiting.join().unwrap().is_some());
    assert!(knows(&near, &far) && knows(&far, &near));
    assert!(knows(&third, &near) && knows(&third, &far) && knows(&far, &third));
}

#[test]
fn an_invitation_is_for_one_host() {
    let [near, far, third] = ["near", "far", "third"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    join(&far.keyring, &invitation).unwrap();
    waiting.join().unwrap();
    let why = join(&third.keyring, &invitation).unwrap_err();
    assert!(matches!(why, JoinError::Unreachable(..)), "{why}");
    assert!(why.to_string().contains("was used or has expired"), "{why}");
    assert!(!knows(&near, &third) && !knows(&third, &near));
}

#[test]
fn an_invitation_expires() {
    let [near, far] = ["near", "far"].map(host);
    let (invitation, waiting) = invite(&near, Duration::from_millis(1));
    assert!(waiting.join().unwrap().is_none());
    assert!(join(&far.keyring, &invitation).is_err());
    assert!(!knows(&near, &far));
}

#[test]
fn another_secret_or_another_inviter_is_refused_and_the_invitation_stays() {
    let [near, far, third] = ["near", "far", "third"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    let text = invitation.to_string();
    let (rest, secret) = text.rsplit_once('/').unwrap();
    let digit = if secret.starts_with('0') { "1" } else { "0" };
    let wrong: Invitation = format!("{rest}/{digit}{}", &secret[1..]).parse().unwrap();
    let why = join(&far.keyring, &wrong).unwrap_err();
    assert!(
        matches!(&why, JoinError::Refused(text) if text.contains("secret")),
        "{why}"
    );
    let mut impostor = invitation.clone();
    impostor.inviter = third.keyring.fingerprint();
    let why = join(&far.keyring, &impostor).unwrap_err();
    assert!(matches!(why, JoinError::Link(_)), "{why}");
    assert!(!knows(&near, &far) && !knows(&far, &near));
    join(&far.keyring, &invitation).unwrap();
    assert!(waiting.join().unwrap().is_some());
}

#[test]
fn peers_that_connect_and_send_nothing_keep_no_host_from_joining() {
    let [near, far] = ["near", "far"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    let connect = |_| TcpStream::connect(invitation.addresses[0]).unwrap();
    let _idle: Vec<_> = (0..40).map(connect).collect();
    join(&far.keyring, &invitation).unwrap();
    assert_eq!(waiting.join().unwrap().unwrap().name, "far");
}

#[test]
fn a_host_that_could_not_write_its_list_joins_by_the_same_invitation() {
    let [near, far, third] = ["near", "far", "third"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    let lock = far.keyring.folder().join("lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    join(&far.keyring, &invitation).unwrap_err();
    let why = join(&third.keyring, &invitation).unwrap_err();
    assert!(why.to_string().contains("was used"), "{why}");
    std::fs::remove_dir(&lock).unwrap();
    join(&far.keyring, &invitation).unwrap();
    assert_eq!(waiting.join().unwrap().unwrap().name, "far");
    assert!(knows(&near, &far) && knows(&far, &near));
}

#[test]
fn a_host_that_was_removed_joins_with_another_key_only() {
    let [near, far] = ["near", "far"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    join(&far.keyring, &invitation).unwrap();
    waiting.join().unwrap();
    let removed = far.keyring.fingerprint();
    near.keyring.update(|list| list.remove(removed)).unwrap();
    let (invitation, waiting) = invite(&near, LIFE);
    let why = join(&far.keyring, &invitation).unwrap_err();
    assert!(why.to_string().contains("selfpage cluster leave"), "{why}");
    Keyring::delete(far.keyring.folder()).unwrap();
    let again = Keyring::open(far.keyring.folder()).unwrap();
    again.set_own("far", None).unwrap();
    join(&again, &invitation).unwrap();
    waiting.join().unwrap();
    assert!(near.keyring.is_member(&again.fingerprint()) && !near.keyring.is_member(&removed));
}

#[test]
fn a_host_that_has_removed_the_inviting_host_is_refused() {
    let [near, far] = ["near", "far"].map(host);
    let key = near.keyring.fingerprint();
    far.keyring.update(|list| list.remove(key)).unwrap();
    let (invitation, waiting) = invite(&near, LIFE);
    let why = join(&far.keyring, &invitation).unwrap_err();
    assert!(why.to_string().contains("selfpage cluster leave"), "{why}");
    assert!(near.keyring.is_member(&key) && !knows(&near, &far));
    // Others may use the invitation yet.
    let third = host("third");
    join(&third.keyring, &invitation).unwrap();
    assert!(waiting.join().unwrap().is_some());
}

#[test]
fn a_host_that_was_removed_learns_it_where_it_names_itself() {
    let near = host("near");
    let own = near.keyring.fingerprint();
    near.keyring.update(|list| list.remove(own)).unwrap();
    let why = near.keyring.set_own("near", None).unwrap_err();
    assert!(matches!(why, KeyringError::Removed(_)), "{why}");
    assert!(why.to_string().contains("selfpage cluster leave"), "{why}");
}

#[test]
fn members_learn_of_others_and_of_removals_from_each_other() {
    let [near, far] = ["near", "far"].map(host);
    let (invitation, waiting) = invite(&near, LIFE);
    join(&far.keyring, &invitation).unwrap();
    waiting.join().unwrap();
    let [third, old] = [(); 2].map(|()| {
        let key = HostKey::decode(&HostKey::generate().unwrap()).unwrap();
        key.fingerprint()
    });
    far.keyring
        .update(|list| list.set(old, "old", None))
        .unwrap();
    far.keyring.update(|list| list.remove(old)).unwrap();
    near.keyring
        .update(|list| list.set(third, "third", None))
        .unwrap();
    near.keyring
        .update(|list| list.set(old, "old", None))
        .unwrap();

    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let trust = Trust::Members(far.keyring.clone());
    let config = server_config(far.keyring.key(), trust, &[Protocol::Members]).unwrap();
    let far_keyring = far.keyring.clone();
    let answering = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut link = Handshake::server(&config)
            .unwrap()
            .complete(stream, LIFE)
            .unwrap();
        answer(&far_keyring, &mut link).unwrap();
    });
    share_with(&near.keyring, &address).unwrap();
    answering.join().unwrap();
    assert_eq!(
        near.keyring.members().unwrap(),
        far.keyring.members().unwrap()
    );
    assert!(far.keyring.is_member(&third) && !near.keyring.is_member(&old));
}

#[test]
fn a_peer_that_sends_a_byte_now_and_then_holds_a_handshake_no_longer_than_another() {
    // The head of a record, and a byte of it at a time.
    const RECORD: usize = 2000;
    let near = host("near");
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.write_all(&[
        22,
        3,
        1,
        (RECORD >> 8) as u8,
        RECORD as u8,
        1,
        0,
        1,
        0,
        3,
        3,
    ])
    .unwrap();
    let sending = std::thread::spawn(move || {
        let send = |_: &usize| {
            std::thread::sleep(Duration::from_millis(10));
            peer.write_all(&[0]).is_ok()
        };
        (0..RECORD / 2).take_while(send).count()
    });
    let trust = Trust::Members(near.keyring.clone());
    let config = server_config(near.keyring.key(), trust, &[Protocol::Members]).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let limit = Duration::from_millis(200);
    let outcome = Handshake::server(&config).unwrap().complete(stream, limit);
    assert!(
        matches!(outcome, Err(HandshakeError::Late(_))),
        "{outcome:?}"
    );
    assert!(
        sending.join().unwrap() < RECORD / 2,
        "it waited for all of them"
    );
}
