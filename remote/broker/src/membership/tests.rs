//! The membership beside a host that forges datagrams.

use super::*;
use crate::test_member::{member_at, runtime};
use foca::{Codec, Header, Message, State};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::channel;

/// Members that a datagram names.
const NAMED: usize = 20;

fn member(number: u64) -> Member {
    let [.., high, middle, low, port] = number.to_be_bytes();
    let address = ([127, high, middle, low], 1024 + u16::from(port)).into();
    member_at(number, address)
}

/// Gossip of one member to another.
fn gossip(from: u64, to: u64, updates: impl Iterator<Item = foca::Member<Member>>) -> Vec<u8> {
    let header = Header {
        src: member(from),
        src_incarnation: 0,
        dst: member(to),
        message: Message::Gossip,
    };
    let updates: Vec<_> = updates.collect();
    let mut datagram = Vec::new();
    PostcardCodec.encode_header(&header, &mut datagram).unwrap();
    datagram.extend((updates.len() as u16).to_be_bytes());
    for update in updates {
        PostcardCodec.encode_member(&update, &mut datagram).unwrap();
    }
    datagram
}

fn alive(number: u64) -> foca::Member<Member> {
    foca::Member::alive(member(number))
}

/// A membership of member 1, whose host has not begun, and what it reports.
async fn membership() -> (Membership, Receiver<Event>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (own, known) = watch::channel(member(1));
    // It stays as it is.
    drop(own);
    let (events, reports) = channel(10_000);
    let socket = MembershipSocket::new(socket, None);
    (Membership::new(known, socket, events), reports)
}

async fn receive(of: &mut Membership, datagram: &[u8]) {
    of.on_datagram(datagram).unwrap();
    of.settle();
    of.report().await.unwrap();
}

#[test]
fn forged_datagrams_name_no_more_members_than_there_may_be() {
    runtime().block_on(async {
        let (mut own, mut reports) = membership().await;
        let begun = Instant::now();
        receive(&mut own, &gossip(2, 1, std::iter::once(alive(3)))).await;
        let datagrams = 2 * MAX_MEMBERS / NAMED;
        for number in 0..datagrams {
            let first = 100 + (number * NAMED) as u64;
            let named = (first..first + NAMED as u64).map(alive);
            receive(&mut own, &gossip(2, 1, named)).await;
        }
        let known = own.foca.iter_membership_state().len();
        assert!(
            (MAX_MEMBERS..MAX_MEMBERS + NAMED).contains(&known),
            "{known}"
        );
        let most = 1 + begun.elapsed().as_millis() / REPORT.as_millis();
        let reported = std::iter::from_fn(|| reports.try_recv().ok()).count();
        assert!(
            (1..=most as usize).contains(&reported),
            "{reported} reports"
        );
        // Of those that are known news is taken as before.
        let down = foca::Member::new(member(3), 0, State::Down);
        let news = [alive(1_000_000), down].into_iter();
        receive(&mut own, &gossip(2, 1, news)).await;
        receive(&mut own, &gossip(1_000_000, 1, std::iter::empty())).await;
        assert_eq!(own.foca.iter_membership_state().len(), known);
        assert!(own.foca.iter_members().all(|it| *it.id() != member(3)));
        // Then it makes room for another.
        own.on_timer().unwrap();
        assert_eq!(own.foca.iter_membership_state().len(), known - 1);
    });
}

#[test]
fn a_member_that_is_down_again_and_again_waits_once_to_be_forgotten() {
    runtime().block_on(async {
        let (mut own, _reports) = membership().await;
        for since in 0..1000 {
            let life = Member { since, ..member(3) };
            let down = foca::Member::new(life, 0, State::Down);
            receive(&mut own, &gossip(2, 1, std::iter::once(down))).await;
        }
        assert!(own.timers.pop_down().is_some());
        assert!(own.timers.pop_down().is_none());
    });
}
