//! Transactions that are cancelled as they start: their clients are not charged.

mod common;

use common::contract;
use disk::atropos::{Atropos, Decision, TransactionDesc, Utilization};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};

const COST: Nanos = Nanos::micros(500);

/// A client with room for two transactions in a period has more cancelled than in a hundred periods, and does one after that
/// in the same period.
#[test]
fn cancelled_transactions_leave_their_client_its_time() {
    for bound in [Nanos::ZERO, Nanos::millis(2)] {
        let mut disk = Atropos::new(Utilization::WHOLE, bound, ());
        let client = disk.admit(Time(0), contract(1, 20, 0)).unwrap();
        for tag in 0..=200 {
            let job = TransactionDesc {
                op: Op::Read,
                bytes: 4096,
                cost: COST,
                tag,
            };
            assert!(disk.submit(Time(0), client, job));
        }
        for tag in 0..200 {
            let Decision::Dispatch(start) = disk.next(Time(0)) else {
                panic!("the client of transaction {tag} was charged for others");
            };
            assert_eq!(start.job.tag, tag);
            disk.cancel(Time(0), start.ticket);
        }
        let Decision::Dispatch(start) = disk.next(Time(0)) else {
            panic!("no time is left");
        };
        disk.complete(Time(COST.0), start.ticket, COST);
        let state = disk.client(client).unwrap();
        assert_eq!(state.totals.charged, COST);
    }
}
