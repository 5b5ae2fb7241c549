//! Hosts that stand still for some ticks and go on: what that costs the epochs of the others.
//!
//! A host that has no processor neither ticks nor handles messages. When it goes on it handles what has arrived,
//! and its first tick counts no silence, as `remote/broker` has it. Messages to it may have been kept, or dropped
//! by senders that wait for nothing.

mod common;

use common::incarnation;
use selfpage_remote_policy::election::{
    BROKER_SILENCE_TICKS, Candidate, ElectionAction, Message, Role, SERVER_SILENCE_TICKS,
};
use selfpage_remote_policy::identity::{Epoch, HostId};
use std::collections::VecDeque;

const HOSTS: u64 = 7;
/// Ticks after which a group has one broker again, from any state that these tests make.
const SETTLED: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mail {
    Kept,
    Dropped,
}

/// Hosts on one link. Messages arrive at once, in order.
struct Group {
    candidates: Vec<Candidate>,
    stalled: Vec<bool>,
    mail: Mail,
    waiting: Vec<VecDeque<(HostId, Message)>>,
    /// Epochs that some host has led since the count began.
    led: Vec<Epoch>,
}

impl Group {
    /// A group that has one broker.
    fn settled(mail: Mail) -> Self {
        let hosts = (0..HOSTS).map(HostId);
        let mut group = Self {
            candidates: Vec::new(),
            stalled: vec![false; HOSTS as usize],
            mail,
            waiting: vec![VecDeque::new(); HOSTS as usize],
            led: Vec::new(),
        };
        for host in hosts.clone() {
            let (mut candidate, _) = Candidate::new(incarnation(host.0, 1), None);
            candidate.on_membership(hosts.clone());
            group.candidates.push(candidate);
        }
        group.run(SETTLED);
        group.assert_one_broker();
        group.led.clear();
        group
    }

    fn act(&mut self, from: HostId, actions: Vec<ElectionAction>) {
        for action in actions {
            match action {
                ElectionAction::Lead(epoch) => self.led.push(epoch),
                ElectionAction::Send { to, message } => {
                    let at = to.0 as usize;
                    if !self.stalled[at] || self.mail == Mail::Kept {
                        self.waiting[at].push_back((from, message));
                    }
                }
                _ => {}
            }
        }
    }

    fn deliver(&mut self) {
        let next = |group: &Self| {
            let mut hosts = 0..group.waiting.len();
            hosts.find(|at| !group.stalled[*at] && !group.waiting[*at].is_empty())
        };
        while let Some(at) = next(self) {
            if let Some((from, message)) = self.waiting[at].pop_front() {
                let actions = self.candidates[at].on_message(from, message);
                self.act(HostId(at as u64), actions);
            }
        }
    }

    fn run(&mut self, ticks: u32) {
        for _ in 0..ticks {
            for at in 0..self.candidates.len() {
                if !self.stalled[at] {
                    let actions = self.candidates[at].on_tick();
                    self.act(HostId(at as u64), actions);
                }
                self.deliver();
            }
        }
    }

    /// Some hosts stand still for so many ticks, and go on.
    fn stall(&mut self, hosts: &[usize], ticks: u32) {
        hosts.iter().for_each(|at| self.stalled[*at] = true);
        self.run(ticks);
        for at in hosts {
            self.stalled[*at] = false;
            self.deliver();
            let actions = self.candidates[*at].repeat_signs();
            self.act(HostId(*at as u64), actions);
            self.deliver();
        }
    }

    fn broker(&self) -> usize {
        let is_broker = |candidate: &Candidate| matches!(candidate.role(), Role::Broker { .. });
        self.candidates.iter().position(is_broker).unwrap()
    }

    fn followers(&self) -> Vec<usize> {
        let broker = self.broker();
        (0..self.candidates.len())
            .filter(|at| *at != broker)
            .collect()
    }

    fn assert_one_broker(&self) {
        let broker = &self.candidates[self.broker()];
        let Role::Broker { epoch, servers } = broker.role() else {
            unreachable!("it was found as a broker");
        };
        assert_eq!(servers.len() as u64, HOSTS);
        for candidate in &self.candidates {
            assert_eq!(candidate.held(), *epoch);
        }
    }
}

#[test]
fn followers_that_stand_still_cost_no_host_its_epoch() {
    for mail in [Mail::Kept, Mail::Dropped] {
        for stalled in 1..HOSTS as usize {
            for ticks in 1..=3 * u32::from(BROKER_SILENCE_TICKS) {
                let mut group = Group::settled(mail);
                let hosts = &group.followers()[..stalled];
                group.stall(hosts, ticks);
                group.run(SETTLED);
                assert_eq!(
                    group.led,
                    [],
                    "{stalled} hosts, {ticks} ticks, messages {mail:?}"
                );
                group.assert_one_broker();
            }
        }
    }
}

#[test]
fn followers_that_stand_still_again_and_again_cost_no_host_its_epoch() {
    for mail in [Mail::Kept, Mail::Dropped] {
        let mut random = fastrand::Rng::with_seed(1);
        let mut group = Group::settled(mail);
        for _ in 0..200 {
            let mut hosts = group.followers();
            random.shuffle(&mut hosts);
            hosts.truncate(random.usize(1..hosts.len()));
            group.stall(&hosts, random.u32(1..=12));
            group.run(random.u32(0..3));
        }
        group.run(SETTLED);
        assert_eq!(group.led, [], "messages {mail:?}");
        group.assert_one_broker();
    }
}

#[test]
fn a_broker_that_stands_still_for_less_than_its_followers_wait_keeps_its_epoch() {
    for mail in [Mail::Kept, Mail::Dropped] {
        // Its followers may have counted a tick since its last claim when it stops.
        for ticks in 1..u32::from(BROKER_SILENCE_TICKS) - 1 {
            let mut group = Group::settled(mail);
            group.stall(&[group.broker()], ticks);
            group.run(SETTLED);
            assert_eq!(group.led, [], "{ticks} ticks, messages {mail:?}");
            group.assert_one_broker();
        }
    }
}

#[test]
fn a_broker_that_stands_still_for_longer_is_replaced_once() {
    for mail in [Mail::Kept, Mail::Dropped] {
        for ticks in u32::from(BROKER_SILENCE_TICKS)..=3 * u32::from(BROKER_SILENCE_TICKS) {
            let mut group = Group::settled(mail);
            let before = group.candidates[0].held().number;
            group.stall(&[group.broker()], ticks);
            group.run(SETTLED);
            group.assert_one_broker();
            // Each follower regenerates, the winner raises its epoch above theirs, and the one that was still
            // concedes to it.
            let risen = group.candidates[0].held().number - before;
            assert!(risen <= 3, "{risen} epochs, {ticks} ticks, {mail:?}");
            let most = HOSTS as usize + 2;
            assert!(group.led.len() <= most, "{:?} led", group.led);
        }
    }
    const { assert!(SERVER_SILENCE_TICKS < BROKER_SILENCE_TICKS) };
}
