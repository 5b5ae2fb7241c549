//! Contracts are kept for all contracts and all behaviour of clients.

mod common;

use common::{Client, Device, Habit, periods, run};
use disk::atropos::{DiskContract, Utilization};
use disk::time::{Nanos, Time};
use disk::trace::TraceEvent;
use proptest::prelude::*;

/// Contracts that sum to at most all of the disk's time, for up to six clients.
fn contracts() -> impl Strategy<Value = Vec<DiskContract>> {
    let one = (20u64..500, 1u64..100, any::<bool>(), 0u64..20);
    (prop::collection::vec(one, 1..7), 50u64..=100).prop_map(|(all, load)| {
        let weights: u64 = all.iter().map(|one| one.1).sum();
        let contract = |(period, weight, extra, laxity): (u64, u64, bool, u64)| DiskContract {
            period: Nanos::millis(period),
            slice: Nanos((period * 10_000 * weight * load / weights).max(1000)),
            extra,
            laxity: Nanos::millis(laxity.min(period)),
        };
        all.into_iter().map(contract).collect()
    })
}

fn devices() -> impl Strategy<Value = Device> {
    let modelled = (1u64..10, 0u64..500).prop_map(|(bound, latency)| Device {
        bound: Nanos::millis(bound),
        slower: 100,
        latency: Nanos::micros(latency),
    });
    let elapsed = Just(Device {
        bound: Nanos::ZERO,
        slower: 100,
        latency: Nanos::ZERO,
    });
    prop_oneof![elapsed, modelled]
}

fn habits() -> impl Strategy<Value = Habit> {
    prop_oneof![
        (1u32..40).prop_map(|outstanding| Habit::Backlog { outstanding }),
        (0u64..30_000).prop_map(|think| Habit::Serial {
            think: Nanos::micros(think)
        }),
        (1u32..50, 0u64..300).prop_map(|(burst, idle)| Habit::Bursts {
            burst,
            idle: Nanos::millis(idle)
        }),
        (1u32..3000).prop_map(|requests| Habit::Flood { requests }),
    ]
}

/// A client's charges in an interval.
fn charged(events: &[TraceEvent], client: u32, until: Time) -> Nanos {
    let mut sum = Nanos::ZERO;
    for event in events.iter().filter(|event| event.client() == client) {
        match *event {
            TraceEvent::Transaction {
                started,
                charge,
                slack: false,
                ..
            } if started < until => {
                sum += charge;
            }
            TraceEvent::Lax { from, to, .. } => sum += to.min(until) - from,
            _ => {}
        }
    }
    sum
}

const TIME: Nanos = Nanos::seconds(6);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// The first client always has work; the others do as they like, with transactions of any size.
    #[test]
    fn a_backlogged_client_gets_its_slice_each_period_whatever_the_others_do(
        contracts in contracts(),
        device in devices(),
        habits in prop::collection::vec((habits(), 10u64..200_000, 0u64..1000), 6),
        cost in 10u64..5_000,
        outstanding in 1u32..20,
    ) {
        let mut clients: Vec<_> = contracts.iter().zip(habits)
            .map(|(&contract, (habit, cost, begins))| Client {
                contract,
                habit,
                // All of them together must not make it later than a period.
                cost: Nanos::micros(cost).min(Nanos(contracts[0].period.0 / 16)),
                begins: Time(begins * 1_000_000),
            })
            .collect();
        // A client with less outstanding than the bound is not backlogged.
        let outstanding = outstanding + ((device.bound + device.latency).0 / (cost * 1000)) as u32;
        clients[0].habit = Habit::Backlog { outstanding };
        clients[0].cost = Nanos::micros(cost);
        clients[0].begins = Time(0);
        // Contracts are for what the device does at its bound; the owner sets a bound at which the
        // device does all it can.
        let device = Device { latency: Nanos::ZERO, ..device };
        let run = run(device, &clients, Utilization::WHOLE, TIME);
        let DiskContract { period, slice, .. } = clients[0].contract;
        let own = clients[0].cost;
        // Each of the others may have started a transaction just before, and another may roll over;
        // and the bound may be in flight.
        let others: Nanos = clients.iter().map(|client| client.cost + client.cost).fold(device.bound, |a, b| a + b);
        for count in 1.. {
            let until = Time(period.0 * count) + others;
            if until > Time(0) + TIME {
                break;
            }
            let got = charged(&run.events, 0, until);
            let due = Nanos(slice.0 * count) - own;
            prop_assert!(got >= due, "{got} of {due} after {count} periods, {others} late, {}", run.factor);
        }
    }

    #[test]
    fn no_period_has_more_than_its_slice_and_a_transaction_and_it_is_repaid(
        contracts in contracts(),
        device in devices(),
        habits in prop::collection::vec((habits(), 10u64..100_000), 6),
    ) {
        let clients: Vec<_> = contracts.iter().zip(habits)
            .map(|(&contract, (habit, cost))| Client {
                contract, habit, cost: Nanos::micros(cost), begins: Time(0),
            })
            .collect();
        let run = run(device, &clients, Utilization::WHOLE, TIME);
        for (at, client) in clients.iter().enumerate() {
            // Alone it is charged the latency too; the correction may have moved a little.
            let one = client.cost + device.latency;
            let one = one + Nanos(one.0 / 8);
            let (slice, all) = (client.contract.slice, periods(&run, at));
            let mut sum = Nanos::ZERO;
            let mut time = Nanos::ZERO;
            for &(charged, length) in &all {
                prop_assert!(charged <= slice + one, "{charged} in a period of {client:?}, {}", run.factor);
                sum += charged;
                time += length;
                // Idleness may cut a period short, but never for more than the share.
                let fair = client.contract.share().in_period(time);
                prop_assert!(sum <= fair + slice + one, "{sum} in {time} of {client:?}");
            }
        }
    }

    #[test]
    fn lax_time_is_never_longer_than_the_laxity_and_always_charged(
        contracts in contracts(),
        device in devices(),
        habits in prop::collection::vec((habits(), 10u64..20_000), 6),
    ) {
        let clients: Vec<_> = contracts.iter().zip(habits)
            .map(|(&contract, (habit, cost))| Client {
                contract, habit, cost: Nanos::micros(cost), begins: Time(0),
            })
            .collect();
        let run = run(device, &clients, Utilization::WHOLE, TIME);
        for (at, view) in run.views.iter().enumerate() {
            let laxity = view.contract.laxity;
            let mut last = Time(0);
            let mut stretch = Nanos::ZERO;
            for event in run.events.iter().filter(|event| event.client() == at as u32) {
                if let TraceEvent::Lax { from, to, .. } = *event {
                    prop_assert!(from >= last);
                    stretch = if from == last { stretch } else { Nanos::ZERO } + (to - from);
                    last = to;
                    prop_assert!(stretch <= laxity, "{event:?}");
                }
            }
            prop_assert!(view.totals.longest_lax <= laxity);
            prop_assert!(view.totals.lax <= view.totals.charged);
        }
    }

    #[test]
    fn slack_goes_to_those_with_x_and_the_device_never_idles_while_one_has_work(
        contracts in contracts(),
        device in devices(),
        habits in prop::collection::vec((habits(), 10u64..20_000), 6),
    ) {
        let clients: Vec<_> = contracts.iter().zip(habits)
            .map(|(&contract, (habit, cost))| Client {
                contract, habit, cost: Nanos::micros(cost), begins: Time(0),
            })
            .collect();
        let run = run(device, &clients, Utilization::WHOLE, TIME);
        for view in &run.views {
            prop_assert!(view.contract.extra || view.totals.slack == Nanos::ZERO);
        }
        prop_assert_eq!(run.wasted, Nanos::ZERO);
    }

    #[test]
    fn a_pager_that_blocks_between_transactions_gets_its_slice_by_its_laxity(
        slice in 20u64..120,
        think in 0u64..9_000,
        cost in 50u64..9_000,
        neighbour in 10u64..50_000,
    ) {
        let contract = |slice, laxity| DiskContract {
            period: Nanos::millis(250),
            slice: Nanos::millis(slice),
            extra: false,
            laxity: Nanos::millis(laxity),
        };
        let clients = [
            Client {
                contract: contract(slice, 10),
                habit: Habit::Serial { think: Nanos::micros(think) },
                cost: Nanos::micros(cost),
                begins: Time(0),
            },
            Client {
                contract: contract(125, 0),
                habit: Habit::Backlog { outstanding: 8 },
                cost: Nanos::micros(neighbour),
                begins: Time(0),
            },
        ];
        let device = Device { bound: Nanos::ZERO, slower: 100, latency: Nanos::ZERO };
        let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(10));
        let most = Nanos::millis(slice * 40);
        let charged = run.views[0].totals.charged;
        // In each period it loses at most its wait for its neighbour's one transaction.
        prop_assert!(charged.0 * 100 >= most.0 * 95, "{charged} of {most}");
        // Its transactions are charged as much as its own think time leaves.
        let transactions = (charged - run.views[0].totals.lax).0 as f64 / charged.0 as f64;
        let fair = cost as f64 / (cost + think) as f64;
        prop_assert!(transactions >= 0.9 * fair, "{transactions} of {fair}");
    }

    #[test]
    fn a_newly_active_clients_first_request_waits_at_most_for_the_bound_or_one_transaction(
        contracts in contracts(),
        device in devices(),
        cost in 10u64..2_000,
        begins in 100u64..2_000,
    ) {
        let mut clients: Vec<_> = contracts.iter()
            .map(|&contract| Client {
                contract,
                habit: Habit::Backlog { outstanding: 16 },
                cost: Nanos::micros(cost),
                begins: Time(0),
            })
            .collect();
        let last = clients.len() - 1;
        clients[last].begins = Time(begins * 1_000_000 + 1);
        // A request that fits its slice.
        clients[last].cost = clients[last].cost.min(clients[last].contract.slice);
        let run = run(device, &clients, Utilization::WHOLE, TIME);
        let most = device.bound.max(Nanos::micros(cost)) + device.latency + clients[last].cost;
        prop_assert!(run.waits[last][0] <= most, "{} of {most}", run.waits[last][0]);
    }
}
