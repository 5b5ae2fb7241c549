//! Admission, change and removal of clients, and the errors they get.

mod common;

use common::{Client, Device, Habit, contract, run};
use disk::atropos::{
    AdmissionError, Atropos, ClientId, Decision, DiskContract, TransactionDesc, Utilization,
};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use disk::trace::TraceEvent;

type Disk = Atropos<Vec<TraceEvent>>;

fn disk(percent: u64) -> Disk {
    Atropos::new(Utilization::percent(percent), Nanos::ZERO, Vec::new())
}

fn job(cost: u64, tag: u64) -> TransactionDesc {
    let cost = Nanos::millis(cost);
    TransactionDesc {
        op: Op::Write,
        bytes: 4096,
        cost,
        tag,
    }
}

fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// Runs the next transaction, which must exist, for its modelled cost.
fn serve(disk: &mut Disk, millis: &mut u64) -> u64 {
    let Decision::Dispatch(start) = disk.next(at(*millis)) else {
        panic!("nothing to do at {millis} ms");
    };
    *millis += start.job.cost.0 / 1_000_000;
    disk.complete(at(*millis), start.ticket, start.job.cost);
    start.job.tag
}

fn backlog(disk: &mut Disk, client: ClientId, count: u64, tag: u64) {
    (0..count).for_each(|_| assert!(disk.submit(at(0), client, job(10, tag))));
}

#[test]
fn contracts_past_the_capacity_are_refused_with_the_figures() {
    let mut disk = disk(90);
    let first = disk.admit(Time(0), contract(125, 250, 0)).unwrap();
    let refusal = disk.admit(Time(0), contract(125, 250, 0)).unwrap_err();
    let text = refusal.to_string();
    for part in [
        "125ms/250ms is 50.0 %",
        "50.0 % of at most 90.0 %",
        "1 clients",
        "at most 100ms",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(disk.admit(Time(0), contract(100, 250, 0)).is_ok());
    disk.remove(at(0), first);
    assert!(disk.admit(Time(0), contract(125, 250, 0)).is_ok());
}

#[test]
fn a_contract_that_contradicts_itself_is_refused() {
    let mut disk = disk(90);
    for (slice, period, laxity) in [(10, 0, 0), (20, 10, 0), (0, 10, 0), (5, 10, 20)] {
        let refusal = disk.admit(Time(0), contract(slice, period, laxity));
        assert!(
            matches!(refusal, Err(AdmissionError::Contract { .. })),
            "{refusal:?}"
        );
    }
    let slack = contract(0, 10, 0).with_slack();
    assert!(disk.admit(Time(0), slack).is_ok());
}

#[test]
fn a_changed_contract_holds_from_the_next_period_on() {
    let mut disk = disk(100);
    let client = disk.admit(Time(0), contract(20, 100, 0)).unwrap();
    backlog(&mut disk, client, 20, 0);
    let mut now = 0;
    serve(&mut disk, &mut now);
    disk.change(at(now), client, contract(50, 100, 0)).unwrap();
    assert_eq!(
        disk.client(client).unwrap().next_contract,
        Some(contract(50, 100, 0))
    );
    // Until then both contracts count as reserved.
    assert!(disk.admit(at(now), contract(60, 100, 0)).is_err());
    serve(&mut disk, &mut now);
    assert_eq!(disk.next(at(now)), Decision::WaitUntil(at(100)));
    now = 100;
    (0..5).for_each(|_| _ = serve(&mut disk, &mut now));
    assert_eq!(disk.next(at(now)), Decision::WaitUntil(at(200)));
    disk.change(at(now), client, contract(20, 100, 0)).unwrap();
    assert!(disk.admit(at(now), contract(60, 100, 0)).is_err());
    now = 200;
    serve(&mut disk, &mut now);
    assert!(disk.admit(at(now), contract(60, 100, 0)).is_ok());
    let refusal = disk.change(at(now), client, contract(60, 100, 0));
    assert!(matches!(refusal, Err(AdmissionError::Capacity { .. })));
}

#[test]
fn many_small_contracts_have_no_more_slack_than_was_promised_to_them() {
    let extra = |slice, period| contract(slice, period, 0).with_slack();
    let client = |contract| Client {
        contract,
        habit: Habit::Backlog { outstanding: 16 },
        cost: Nanos::micros(100),
        begins: Time(0),
    };
    let mut clients = vec![client(extra(25, 250))];
    clients.extend([client(extra(1, 10_000)); 16]);
    let device = Device {
        bound: Nanos::millis(1),
        slower: 100,
        latency: Nanos::ZERO,
    };
    let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(5));
    let slack = |n: usize| run.views[n].totals.slack.0;
    let others: u64 = (1..clients.len()).map(slack).sum();
    // They were promised 16 parts of 1,000.
    assert!(others * 10 < slack(0) * 2, "{others}, {}", slack(0));
}

#[test]
fn an_idle_clients_contract_changes_at_once() {
    let mut disk = disk(100);
    let client = disk.admit(Time(0), contract(90, 100, 0)).unwrap();
    disk.change(at(5), client, contract(10, 100, 0)).unwrap();
    assert!(disk.admit(Time(0), contract(90, 100, 0)).is_ok());
}

#[test]
fn a_removed_clients_transactions_complete_and_its_queue_is_returned() {
    let mut disk = disk(100);
    let client = disk.admit(Time(0), contract(50, 100, 10)).unwrap();
    backlog(&mut disk, client, 3, 8);
    let Decision::Dispatch(start) = disk.next(at(0)) else {
        panic!()
    };
    let left = disk.remove(at(1), client);
    assert_eq!(left, [job(10, 8), job(10, 8)]);
    assert_eq!(disk.client(client), None);
    assert!(!disk.submit(at(1), client, job(1, 0)));
    assert!(matches!(disk.next(at(1)), Decision::Full(_)));
    let heir = disk.admit(at(1), contract(100, 100, 0)).unwrap();
    assert!(disk.submit(at(2), heir, job(10, 9)));
    disk.complete(at(10), start.ticket, Nanos::millis(10));
    // The first used the time up to here.
    let mut now = 20;
    assert_eq!(disk.next(at(10)), Decision::WaitUntil(at(now)));
    assert_eq!(serve(&mut disk, &mut now), 9);
    assert_eq!(disk.client(heir).unwrap().totals.charged, Nanos::millis(10));
    disk.remove(at(now), heir);
    let other = disk.admit(at(now), contract(100, 100, 0)).unwrap();
    assert_ne!(other, heir);
    assert_eq!(
        disk.change(at(now), heir, contract(1, 100, 0)),
        Err(AdmissionError::Gone)
    );
    assert_eq!(disk.next(at(now)), Decision::Idle);
}

#[test]
fn one_clients_transactions_follow_each_other_while_it_has_time() {
    let mut disk = disk(100);
    let clients = [0, 1].map(|_| disk.admit(Time(0), contract(40, 100, 0)).unwrap());
    for (tag, client) in clients.into_iter().enumerate() {
        backlog(&mut disk, client, 8, tag as u64);
    }
    let mut now = 0;
    let order: Vec<_> = (0..8).map(|_| serve(&mut disk, &mut now)).collect();
    // The second client's first request was urgent; then each has its slice to the end.
    assert_eq!(order, [0, 1, 0, 0, 0, 1, 1, 1]);
}

#[test]
fn slack_is_shared_in_proportion_to_what_was_promised() {
    let client = |slice, extra| Client {
        contract: DiskContract {
            extra,
            ..contract(slice, 250, 0)
        },
        habit: Habit::Backlog { outstanding: 4 },
        cost: Nanos::micros(300),
        begins: Time(0),
    };
    let clients = [
        client(25, true),
        client(50, true),
        client(50, false),
        client(0, true),
    ];
    let device = Device {
        bound: Nanos::ZERO,
        slower: 100,
        latency: Nanos::ZERO,
    };
    let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(20));
    let slack: Vec<_> = run
        .views
        .iter()
        .map(|view| view.totals.slack.0 as f64 / 1e9)
        .collect();
    // Half of the time is promised; of the rest the clients get 10, 20 and, without a slice, 1
    // part.
    for (got, parts) in slack.iter().zip([10.0, 20.0, 0.0, 1.0]) {
        assert!((got - 10.0 * parts / 31.0).abs() < 0.05, "{slack:?}");
    }
}

#[test]
fn a_client_that_returns_to_the_slack_has_saved_none_up() {
    let extra = |begins| Client {
        contract: contract(25, 250, 0).with_slack(),
        habit: Habit::Backlog { outstanding: 4 },
        cost: Nanos::micros(300),
        begins,
    };
    let device = Device {
        bound: Nanos::ZERO,
        slower: 100,
        latency: Nanos::ZERO,
    };
    let clients = [extra(Time(0)), extra(at(10_000))];
    let run = run(device, &clients, Utilization::WHOLE, Nanos::seconds(20));
    let [first, second] = [0, 1].map(|client: usize| run.views[client].totals.slack.0);
    // Nine tenths of ten seconds alone, then four tenths each.
    assert!(first.abs_diff(13_000_000_000) < 100_000_000, "{first}");
    assert!(second.abs_diff(4_000_000_000) < 100_000_000, "{second}");
}

#[test]
fn hundreds_of_idle_contracts_cost_nothing() {
    let mut disk = disk(100);
    let worker = disk.admit(Time(0), contract(50, 100, 0)).unwrap();
    for _ in 0..400 {
        disk.admit(Time(0), contract(1, 1000, 10).with_slack())
            .unwrap();
    }
    backlog(&mut disk, worker, 5, 3);
    let mut now = 0;
    (0..5).for_each(|_| assert_eq!(serve(&mut disk, &mut now), 3));
    // They have no periods at all.
    let allocations = |event: &&TraceEvent| matches!(event, TraceEvent::Allocation { .. });
    assert_eq!(disk.trace().iter().filter(allocations).count(), 1);
}
