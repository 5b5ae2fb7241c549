//! The results of the paper's sections 7.2 and 7.3, on a simulated device.

mod common;

use common::{Client, Device, Habit, contract, periods, run};
use disk::atropos::{DiskContract, Utilization};
use disk::time::{Nanos, Time};
use disk::trace::TraceEvent;

const CLASSIC: Device = Device {
    bound: Nanos::ZERO,
    slower: 100,
    latency: Nanos::ZERO,
};

/// Sixteen transactions of the clients below are in flight at once.
const PARALLEL: Device = Device {
    bound: Nanos::micros(16 * 200),
    slower: 100,
    latency: Nanos::micros(150),
};

fn pager(slice: u64, habit: Habit, cost: Nanos) -> Client {
    Client {
        contract: contract(slice, 250, 10),
        habit,
        cost,
        begins: Time(0),
    }
}

/// How far the charges of three clients are from 1:2:4, as a fraction.
fn error(clients: &[Client], device: Device) -> f64 {
    let run = run(device, clients, Utilization::WHOLE, Nanos::seconds(60));
    let charged: Vec<_> = run
        .views
        .iter()
        .map(|view| view.totals.charged.0 as f64)
        .collect();
    let shares: Vec<_> = clients.iter().map(|c| c.contract.slice.0 as f64).collect();
    let per_share: f64 = charged.iter().sum::<f64>() / shares.iter().sum::<f64>();
    let ratios = charged
        .iter()
        .zip(&shares)
        .map(|(c, s)| (c / s / per_share - 1.0).abs());
    ratios.fold(0.0, f64::max)
}

fn three(habit: Habit, cost: Nanos) -> [Client; 3] {
    [25, 50, 100].map(|slice| pager(slice, habit, cost))
}

#[test]
fn pagers_with_one_fault_at_a_time_are_charged_one_to_two_to_four() {
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let error = error(&three(habit, Nanos::micros(900)), CLASSIC);
    assert!(error < 0.02, "{error}");
}

#[test]
fn pagers_whose_transactions_are_half_a_slice_are_charged_one_to_two_to_four() {
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let error = error(&three(habit, Nanos::micros(10_700)), CLASSIC);
    assert!(error < 0.02, "{error}");
}

#[test]
fn backlogged_clients_are_charged_one_to_two_to_four_at_depth_one() {
    let habit = Habit::Backlog { outstanding: 4 };
    let error = error(&three(habit, Nanos::micros(200)), CLASSIC);
    assert!(error < 0.02, "{error}");
}

#[test]
fn backlogged_clients_are_charged_one_to_two_to_four_at_depth_sixteen() {
    let habit = Habit::Backlog { outstanding: 16 };
    let error = error(&three(habit, Nanos::micros(200)), PARALLEL);
    assert!(error < 0.02, "{error}");
}

#[test]
fn pagers_with_laxity_progress_by_at_least_one_to_two_to_four_at_depth_sixteen() {
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let clients = three(habit, Nanos::micros(200));
    let run = run(PARALLEL, &clients, Utilization::WHOLE, Nanos::seconds(60));
    // The laxity of one that is left alone, with the others' slices used up, is free.
    let done = |n: usize| run.views[n].totals.transactions as f64;
    assert!(done(1) > 2.0 * 0.98 * done(0), "{} {}", done(0), done(1));
    assert!(done(2) > 4.0 * 0.98 * done(0), "{} {}", done(0), done(2));
    for (client, view) in clients.iter().zip(&run.views) {
        let most = client.contract.share().in_period(Nanos::seconds(60));
        let charged = view.totals.charged;
        assert!(charged <= most + client.contract.slice, "{charged}");
    }
}

#[test]
fn without_laxity_a_pager_gets_little_more_than_a_transaction_each_period() {
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let mut clients = vec![pager(100, habit, Nanos::micros(900))];
    clients[0].contract.laxity = Nanos::ZERO;
    clients.push(pager(
        100,
        Habit::Backlog { outstanding: 4 },
        Nanos::millis(1),
    ));
    let without = run(CLASSIC, &clients, Utilization::WHOLE, Nanos::seconds(10));
    clients[0].contract.laxity = Nanos::millis(10);
    let with = run(CLASSIC, &clients, Utilization::WHOLE, Nanos::seconds(10));
    let got = |run: &common::Run| run.views[0].totals.transactions;
    assert!(
        got(&with) * 9 > 10 * got(&without),
        "{} {}",
        got(&with),
        got(&without)
    );
    assert_eq!(with.views[0].totals.charged.0 / 1_000_000_000, 4);
}

#[test]
fn a_file_client_keeps_what_it_had_alone_when_pagers_come() {
    let file = Client {
        contract: contract(125, 250, 0),
        habit: Habit::Backlog { outstanding: 16 },
        cost: Nanos::micros(700),
        begins: Time(0),
    };
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let pagers = [25, 50].map(|slice| pager(slice, habit, Nanos::millis(8)));
    for device in [CLASSIC, PARALLEL] {
        let time = Nanos::seconds(60);
        let alone = run(device, &[file], Utilization::WHOLE, time);
        let beside = run(
            device,
            &[file, pagers[0], pagers[1]],
            Utilization::WHOLE,
            time,
        );
        let [alone, beside] = [alone, beside].map(|run| run.views[0].totals.bytes as f64);
        assert!(beside > 0.99 * alone, "{beside} of {alone}");
    }
}

#[test]
fn lax_time_is_charged_and_never_longer_than_the_laxity() {
    let habit = |think| Habit::Serial {
        think: Nanos::micros(think),
    };
    let clients = [
        pager(25, habit(4_000), Nanos::millis(1)),
        pager(50, habit(9_000), Nanos::millis(3)),
        pager(100, habit(14_000), Nanos::millis(1)),
    ];
    let run = run(CLASSIC, &clients, Utilization::WHOLE, Nanos::seconds(20));
    for (client, view) in run.views.iter().enumerate() {
        let mut lax = Nanos::ZERO;
        for event in &run.events {
            if let TraceEvent::Lax {
                from,
                to,
                client: whose,
            } = *event
                && whose == client as u32
            {
                assert!(to - from <= Nanos::millis(10), "{event:?}");
                lax += to - from;
            }
        }
        // The third is slower than its laxity.
        assert!(lax > Nanos::ZERO || client == 2);
        assert_eq!(lax, view.totals.lax);
        assert!(view.totals.lax < view.totals.charged);
        assert!(view.totals.longest_lax <= Nanos::millis(10));
    }
}

/// 500 faults a second of 60 us each are 7.5 ms of disk time in a period.
const PACED: Habit = Habit::Serial {
    think: Nanos::micros(1_940),
};

#[test]
fn a_pager_that_is_alone_pays_for_no_laxity_and_never_waits_for_a_slice() {
    for device in [CLASSIC, PARALLEL] {
        let clients = [pager(25, PACED, Nanos::micros(60))];
        let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(10));
        assert_eq!(run.views[0].totals.lax, Nanos::ZERO);
        assert_eq!(run.waits[0].iter().max(), Some(&Nanos::ZERO));
    }
}

#[test]
fn clients_without_time_left_make_no_other_pay_for_laxity() {
    let waits = Client {
        contract: DiskContract {
            slice: Nanos::micros(100),
            ..contract(0, 60_000, 0)
        },
        ..pager(0, Habit::Backlog { outstanding: 64 }, Nanos::micros(60))
    };
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let pager = pager(25, habit, Nanos::micros(60));
    let time = Nanos::seconds(10);
    let alone = run(PARALLEL, &[pager], Utilization::WHOLE, time);
    let beside = run(PARALLEL, &[pager, waits], Utilization::WHOLE, time);
    let [alone, beside] = [alone, beside].map(|run| run.views[0].totals.transactions);
    assert!(beside + 10 > alone, "{beside}, {alone} alone");
}

#[test]
fn a_pager_slower_than_its_laxity_keeps_its_slice_for_transactions() {
    let busy = Client {
        contract: contract(100, 250, 0).with_slack(),
        ..pager(100, Habit::Backlog { outstanding: 16 }, Nanos::micros(200))
    };
    let mut clients = [pager(25, PACED, Nanos::micros(60)), busy];
    clients[0].contract.laxity = Nanos::micros(500);
    let device = Device {
        bound: Nanos::micros(800),
        ..PARALLEL
    };
    let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(10));
    let paced = &run.views[0].totals;
    assert!(paced.lax <= Nanos::micros(500), "{}", paced.lax);
    let longest = run.waits[0].iter().max().expect("it waits");
    assert!(longest.0 <= 2 * device.bound.0, "{longest}");
}

#[test]
fn three_transactions_of_ten_in_a_slice_of_twenty_five_are_repaid() {
    let habit = Habit::Serial {
        think: Nanos::micros(200),
    };
    let clients = [pager(25, habit, Nanos::micros(10_100))];
    let run = run(CLASSIC, &clients, Utilization::WHOLE, Nanos::seconds(60));
    let periods = periods(&run, 0);
    let charged = |over: u64| {
        periods
            .iter()
            .filter(|(c, _)| c.0 > over * 1_000_000)
            .count()
    };
    assert!(charged(30) > 0, "some periods have three");
    assert!(charged(30) < periods.len(), "some have less");
    assert_eq!(charged(36), 0, "none has more than one too many");
    let mean = periods.iter().map(|(c, _)| c.0).sum::<u64>() / periods.len() as u64;
    assert!(mean.abs_diff(25_000_000) < 250_000, "{mean}");
}

#[test]
fn at_depth_one_what_is_charged_is_what_was_modelled_within_a_tenth() {
    let habit = Habit::Serial {
        think: Nanos::micros(300),
    };
    let clients = three(habit, Nanos::micros(900));
    for slower in [95, 100, 107] {
        let run = run(
            Device { slower, ..CLASSIC },
            &clients,
            Utilization::WHOLE,
            Nanos::seconds(20),
        );
        for view in &run.views {
            let transactions = view.totals.charged - view.totals.lax;
            let ratio = transactions.0 as f64 / view.totals.modelled.0 as f64;
            assert!((ratio - 1.0).abs() < 0.1, "{ratio} at {slower}");
        }
    }
}

#[test]
fn a_device_slower_than_modelled_is_corrected_for_and_shared_as_promised() {
    let habit = Habit::Backlog { outstanding: 16 };
    let mut clients = three(habit, Nanos::micros(200));
    // Contracts for all of the disk: the model's error cannot hide in spare time.
    clients
        .iter_mut()
        .zip([25, 75, 150])
        .for_each(|(client, slice)| {
            client.contract.slice = Nanos::millis(slice);
        });
    for slower in [60, 140, 200] {
        for device in [CLASSIC, PARALLEL] {
            let device = Device { slower, ..device };
            let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(60));
            assert!(
                (run.factor * 100.0 - slower as f64).abs() < 2.0,
                "{}",
                run.factor
            );
            assert!(error(&clients, device) < 0.02);
        }
    }
}
