//! The tournament is model-checked: ticks, losses, duplicates, reordering, crashes and partitions
//! in every order of a small group. From each state that the checker reaches, a run without
//! further faults leads to one broker for each connected group, which stays.

mod state;

use selfpage_remote_policy::identity::HostId;
use state::*;
use stateright::{Checker, Model, Property};

impl Model for Group {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let budget = state.budget;
        for (from, to, message) in &state.network {
            actions.push(Action::Deliver(*from, *to, message.clone()));
            if budget.losses > 0 {
                actions.push(Action::Lose(*from, *to, message.clone()));
            }
            if budget.duplicates > 0 {
                actions.push(Action::Duplicate(*from, *to, message.clone()));
            }
        }
        for host in (0..self.hosts).map(HostId) {
            if !state.hosts.contains_key(&host) {
                actions.push(Action::Restart(host));
                continue;
            }
            if budget.ticks > 0 {
                actions.push(Action::Tick(host));
            }
            if budget.crashes > 0 {
                actions.push(Action::Crash(host));
            }
        }
        if budget.partitions > 0 || state.partitioned {
            actions.push(Action::Partition(!state.partitioned));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick(host) => {
                state.budget.ticks -= 1;
                state.tick(host);
            }
            Action::Deliver(from, to, message) => {
                state.network.remove(&(from, to, message.clone()));
                state.deliver(from, to, message);
            }
            Action::Duplicate(from, to, message) => {
                state.budget.duplicates -= 1;
                state.deliver(from, to, message);
            }
            Action::Lose(from, to, message) => {
                state.budget.losses -= 1;
                state.network.remove(&(from, to, message));
            }
            Action::Crash(host) => {
                state.budget.crashes -= 1;
                state.hosts.remove(&host);
            }
            Action::Restart(host) => {
                state.restarts += 1;
                state.start(host, self.hosts);
            }
            Action::Partition(partitioned) => {
                state.budget.partitions -= u8::from(partitioned);
                state.partitioned = partitioned;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no rule is broken", |_, state: &State| {
                state.broken.is_none()
            }),
            Property::always("one broker for each group follows", |_, state: &State| {
                state.converges()
            }),
            Property::sometimes("one broker controls all", |group, state: &State| {
                state.is_elected() && state.hosts.len() as u64 == group.hosts && !state.partitioned
            }),
        ]
    }
}

/// A group of hosts that have no broker yet.
fn without_broker(hosts: u64, budget: Budget) -> Group {
    Group {
        hosts,
        elected: false,
        silent: 0,
        budget,
    }
}

/// Three hosts whose elected broker may fall silent.
fn with_broker(budget: Budget) -> Group {
    Group {
        hosts: 3,
        elected: true,
        silent: 3,
        budget,
    }
}

fn check(group: Group) {
    let checker = group.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    let states = checker.unique_state_count();
    println!("{states} states");
    assert!(states > 1000, "{states} states are no model");
}

const NONE: Budget = Budget {
    ticks: 0,
    losses: 0,
    duplicates: 0,
    crashes: 0,
    partitions: 0,
};

#[test]
fn three_hosts_elect_one_broker_whatever_the_order_of_messages() {
    let budget = Budget {
        ticks: 3,
        losses: 1,
        ..NONE
    };
    check(without_broker(3, budget));
}

#[test]
fn a_crash_in_the_middle_of_a_tournament_is_survived() {
    let budget = Budget {
        ticks: 3,
        crashes: 1,
        ..NONE
    };
    check(without_broker(3, budget));
}

#[test]
fn a_broker_that_falls_silent_is_regenerated_once() {
    let budget = Budget {
        ticks: 3,
        losses: 1,
        crashes: 1,
        ..NONE
    };
    check(with_broker(budget));
}

#[test]
fn a_partition_has_a_broker_on_each_side_and_one_after_it() {
    let budget = Budget {
        ticks: 3,
        duplicates: 1,
        partitions: 1,
        ..NONE
    };
    check(with_broker(budget));
}

#[test]
#[ignore = "a larger model, for a change of the protocol"]
fn one_broker_is_elected_through_all_faults_together_and_of_four_hosts() {
    let budget = Budget {
        ticks: 4,
        losses: 1,
        crashes: 1,
        partitions: 1,
        ..NONE
    };
    check(with_broker(budget));
    check(without_broker(4, Budget { ticks: 4, ..NONE }));
}
