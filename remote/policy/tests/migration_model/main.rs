//! A move is model-checked: a client writes and reads while its object moves, messages
//! are lost, duplicated and reordered, and either server dies at any step. No read is older than
//! the last acknowledged write, and one copy is authoritative throughout.

mod rules;
mod state;

use selfpage_remote_policy::migration::{Move, MoveOutcome};
use state::*;
use stateright::{Checker, Model, Property};

impl Model for Faults {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(*self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let faults = state.faults;
        for sent in &state.network {
            actions.push(Action::Deliver(sent.clone()));
            if faults.losses > 0 {
                actions.push(Action::Lose(sent.clone()));
            }
            if faults.duplicates > 0 {
                actions.push(Action::Duplicate(sent.clone()));
            }
        }
        if faults.resends > 0 {
            actions.push(Action::Resend);
        }
        for index in 0..2 {
            if faults.crashes > 0 && !state.servers[index].crashed {
                actions.push(Action::Crash(index));
            }
            if state.servers[index].crashed {
                actions.push(Action::NoticeDeath(index));
            }
        }
        if faults.cancels > 0 {
            actions.push(Action::Cancel);
        }
        for page in faults.all_pages() {
            if faults.writes > 0 {
                actions.push(Action::Write(page));
            }
            if faults.reads > 0 && state.client.read.is_none() {
                actions.push(Action::Read(page));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(sent) => {
                state.network.remove(&sent);
                state.deliver(sent);
            }
            Action::Duplicate(sent) => {
                state.faults.duplicates -= 1;
                state.deliver(sent);
            }
            Action::Lose(sent) => {
                state.faults.losses -= 1;
                state.network.remove(&sent);
            }
            Action::Resend => {
                state.faults.resends -= 1;
                state.resend();
            }
            Action::Crash(index) => {
                state.faults.crashes -= 1;
                let host = state.servers[index].incarnation.host;
                state.servers[index] = Server {
                    crashed: true,
                    ..server(host, 1)
                };
            }
            Action::NoticeDeath(index) => {
                let host = state.servers[index].incarnation.host;
                state.change_move(|migration| migration.on_died(host));
            }
            Action::Cancel => {
                state.faults.cancels -= 1;
                state.change_move(Move::cancel);
            }
            Action::Write(page) => {
                state.faults.writes -= 1;
                state.client.written[page.0 as usize].0 += 1;
                state.send_requests();
            }
            Action::Read(page) => {
                state.faults.reads -= 1;
                state.client.reads += 1;
                let least = state.client.acknowledged[page.0 as usize];
                state.client.read = Some((state.client.reads, page, least));
                state.send_requests();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no read is older than the last acknowledged write",
                |_, state: &State| !state.client.old_read,
            ),
            Property::always(
                "the authoritative copy has every acknowledged write",
                |_, state: &State| state.has_all_acknowledged(),
            ),
            Property::always("one copy is authoritative", |_, state: &State| {
                state.has_one_authority()
            }),
            Property::always("a copy is lost only with its server", |_, state: &State| {
                state.loses_only_what_died()
            }),
            Property::always("a run without further faults ends", |_, state: &State| {
                state.ends()
            }),
            Property::sometimes("the object moves", |_, state: &State| {
                state.migration.outcome() == Some(MoveOutcome::Moved)
            }),
        ]
    }
}

fn check(faults: Faults) {
    let checker = faults.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1000);
}

const NONE: Faults = Faults {
    crashes: 0,
    losses: 0,
    duplicates: 0,
    cancels: 0,
    writes: 0,
    reads: 0,
    resends: 0,
    pages: 1,
};

#[test]
fn either_server_may_die_at_any_step() {
    check(Faults {
        crashes: 1,
        writes: 1,
        ..NONE
    });
}

#[test]
fn both_servers_may_die_while_a_move_is_cancelled() {
    check(Faults {
        crashes: 2,
        cancels: 1,
        ..NONE
    });
}

#[test]
fn no_read_is_old_when_messages_are_late_or_twice() {
    check(Faults {
        duplicates: 1,
        writes: 1,
        reads: 1,
        ..NONE
    });
}

#[test]
fn a_late_write_never_replaces_a_newer_one() {
    check(Faults {
        duplicates: 1,
        writes: 2,
        ..NONE
    });
}

#[test]
fn a_destination_that_restarted_never_serves_what_it_lost() {
    check(Faults {
        crashes: 1,
        duplicates: 1,
        ..NONE
    });
}

#[test]
#[ignore = "a larger model, for a change of migration"]
fn a_move_survives_all_faults_together() {
    check(Faults {
        crashes: 1,
        duplicates: 1,
        writes: 1,
        ..NONE
    });
    check(Faults {
        crashes: 2,
        cancels: 1,
        writes: 1,
        ..NONE
    });
}
