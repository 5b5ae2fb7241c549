//! A reclaim: domains are to give frames back until the tree owns no more than it is to keep.

mod common;

use common::{admit, audit, limited, take};

#[test]
fn a_reclaim_demands_from_domains_above_their_guarantee_in_proportion() {
    let (ledger, mut control) = limited(100, 100);
    let clients = [(10, 30), (10, 50), (20, 20)].map(|(g, n)| {
        let client = admit(&ledger, g, 100);
        (client, take(&client, n))
    });
    assert_eq!(ledger.reclaim_to(70), 30);
    assert_eq!(clients.each_ref().map(|(c, _)| c.demanded()), [10, 20, 0]);
    assert_eq!(
        ledger.reclaim_to(70),
        30,
        "demanding again does not demand more"
    );
    assert_eq!(clients[2].0.take(), None, "nothing is granted meanwhile");
    assert_eq!(control.take_unused(30), 0);
    for (client, frames) in &clients {
        assert!(!ledger.reclaim_done(70));
        let asked = client.demanded();
        client.put_batch(&frames[..asked as usize]).unwrap();
        assert_eq!(client.release_demanded(asked), asked);
        if ledger.reclaim_done(70) {
            break;
        }
    }
    assert_eq!(clients[1].0.take(), None, "the tree cannot take it again");
    assert_eq!(control.take_unused(30), 30);
    assert_eq!(control.raise(5), 5);
    assert_eq!(take(&clients[2].0, 100).len(), 5, "the reclaim has ended");
    audit(&ledger);
}

#[test]
fn a_demand_is_met_when_another_domain_takes_the_frame_over() {
    let (ledger, mut control) = limited(100, 40);
    let victim = admit(&ledger, 0, 100);
    let frames = take(&victim, 30);
    let waiter = admit(&ledger, 0, 100);
    let held = take(&waiter, 10);
    assert_eq!((waiter.take(), ledger.demand(waiter.id(), 1)), (None, 1));
    victim.put_batch(&frames).unwrap();
    assert!(waiter.take().is_some(), "before the victim releases it");
    assert_eq!(victim.demanded(), 0);

    // So a later reclaim demands from the domain that has the frames.
    assert_eq!(victim.release(29), 29);
    assert_eq!(ledger.reclaim_to(10), 1);
    assert_eq!((victim.demanded(), waiter.demanded()), (0, 1));
    waiter.put_batch(&held[..1]).unwrap();
    assert_eq!(waiter.release_demanded(1), 1);
    assert!(ledger.reclaim_done(10));
    assert_eq!(control.take_unused(30), 30);
    audit(&ledger);
}

#[test]
fn a_partial_answer_leaves_the_rest_of_the_demand() {
    let (ledger, _control) = limited(100, 40);
    let victim = admit(&ledger, 0, 100);
    let frames = take(&victim, 10);
    assert_eq!(ledger.reclaim_to(0), 10);
    victim.put_batch(&frames[..5]).unwrap();
    assert_eq!(victim.release_demanded(10), 5);
    assert_eq!(victim.demanded(), 5);
    audit(&ledger);
}

#[test]
fn a_reclaim_whose_frames_were_taken_leaves_no_target() {
    let (ledger, mut control) = limited(1000, 1000);
    let tree = admit(&ledger, 10, 1000);
    let frames = take(&tree, 1000);
    assert_eq!(ledger.reclaim_to(700), 300);
    // A grant meanwhile, and the tree asks itself again for what is still demanded.
    control.take_unused(0);
    ledger.reclaim_to(700);
    tree.put_batch(&frames[..300]).unwrap();
    assert_eq!(tree.release_demanded(300), 300);
    assert_eq!(control.take_unused(200), 200);
    assert_eq!(tree.resident_limit(), 800);
    assert_eq!(take(&tree, 200).len(), 100);
    audit(&ledger);
}

#[test]
fn frames_that_a_domain_releases_by_itself_meet_a_demand() {
    let (ledger, _quota) = limited(100, 40);
    let idle = admit(&ledger, 2, 100);
    let frames = take(&idle, 10);
    let busy = admit(&ledger, 0, 100);
    take(&busy, 30);
    assert_eq!(ledger.reclaim_to(24), 16);
    assert_eq!((idle.demanded(), busy.demanded()), (3, 13));
    idle.put_batch(&frames[..7]).unwrap();
    assert_eq!(idle.release(7), 7);
    assert_eq!(idle.demanded(), 0, "it has released more than was demanded");
    audit(&ledger);
}

#[test]
fn a_reclaim_demands_no_guaranteed_frame() {
    let (ledger, _quota) = limited(100, 100);
    let clients = [30, 50].map(|g| {
        let client = admit(&ledger, g, 100);
        take(&client, 50);
        client
    });
    assert_eq!(ledger.reclaim_to(10), 20);
    assert_eq!(clients.map(|c| c.demanded()), [20, 0]);
    assert_eq!(ledger.reclaim_to(100), 0, "lifted");
    assert_eq!(
        ledger.demand(clients[1].id(), 0),
        20,
        "earlier demands are outstanding"
    );
}

/// Each has locked more than its share, and has nothing to evict.
#[test]
fn domains_above_their_share_do_not_wait_for_each_other() {
    let (ledger, _) = limited(100, 100);
    let [one, other, _idle] = [(); 3].map(|()| admit(&ledger, 4, 100));
    let frames = [take(&one, 40), take(&other, 40)];
    ledger.demand(one.id(), 1);
    ledger.demand(other.id(), 1);
    assert_eq!(take(&one, 1).len() + take(&other, 1).len(), 2);
    one.put_batch(&frames[0][..5]).unwrap();
    one.release(5);
    ledger.demand(one.id(), 1);
    ledger.demand(other.id(), 1);
    assert_eq!(take(&other, 1), [], "the other has fewer, and waits");
    assert_eq!(take(&one, 1).len(), 1);
    assert_eq!(take(&other, 1).len(), 1);
    ledger.demand(other.id(), 1);
    assert_eq!(take(&one, 1), [], "it waits for none, and can evict");
    audit(&ledger);
}
