//! The schedule of the disk, and whether the scheduler kept its rules: pure functions.
//!
//! Nemesis, section 7.2.1: "a log was taken inside the USD scheduler which recorded each
//! time a given client domain was scheduled to perform a transaction, the amount of lax time
//! each client was charged, and the period boundaries upon which a new allocation was
//! granted". The rules are those of section 6.7: no client is lax for longer than its
//! laxity, and one that ends a period with a debt, of one transaction at most, has so much
//! less in the next.

use disk::time::{Nanos, Time};
use disk::trace::TraceEvent;
use std::time::Duration;

/// A client's contract for disk time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskShare {
    /// Time in each period.
    pub slice: Duration,
    /// The period.
    pub period: Duration,
    /// The longest it may be lax at a stretch.
    pub laxity: Duration,
}

/// Time of a client's. All times are from the trace's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// When it began.
    pub from: Duration,
    /// When it ended.
    pub to: Duration,
    /// What the client was charged for it.
    pub charged: Duration,
}

/// The schedule of one client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// Its contract.
    pub contract: DiskShare,
    /// Its transactions, in order.
    pub transactions: Vec<Interval>,
    /// When it was lax, in order.
    pub lax: Vec<Interval>,
    /// When it received new allocations, in order.
    pub allocations: Vec<Duration>,
}

/// How a client's rules were stats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleStats {
    /// Whole periods that were seen.
    pub periods: usize,
    /// The longest it was lax at a stretch.
    pub longest_lax: Duration,
    /// The most it was charged beyond an allocation, less what it owed from before.
    pub overrun: Duration,
    /// The largest charge of one transaction.
    pub transaction: Duration,
    /// Periods whose overrun was more than the largest transaction of the trace. One that
    /// is not repaid makes the next larger, until it is among these.
    pub broken: usize,
}

impl Client {
    /// The part of the trace that concerns client `number`. `events` are in the order of
    /// their recording, a transaction at its end; slack time is charged to no client.
    pub fn of(name: &str, contract: DiskShare, number: u32, events: &[TraceEvent]) -> Self {
        let mut client = Self {
            name: name.to_owned(),
            contract,
            transactions: Vec::new(),
            lax: Vec::new(),
            allocations: Vec::new(),
        };
        for event in events.iter().filter(|event| event.client() == number) {
            match *event {
                TraceEvent::Transaction {
                    started,
                    elapsed,
                    charge,
                    slack,
                    ..
                } => client.transactions.push(Interval {
                    from: since(started),
                    to: since(started + elapsed),
                    charged: if slack { Duration::ZERO } else { charge.into() },
                }),
                TraceEvent::Lax { from, to, .. } => client.lax.push(Interval {
                    from: since(from),
                    to: since(to),
                    charged: (to - from).into(),
                }),
                TraceEvent::Allocation { at, .. } => client.allocations.push(since(at)),
            }
        }
        client.transactions.sort_by_key(|span| span.from);
        client.lax.sort_by_key(|span| span.from);
        client.allocations.sort();
        client
    }

    /// Whether the rules were stats.
    pub fn stats(&self) -> ScheduleStats {
        let largest = self.transactions.iter().map(|s| s.charged).max();
        let transaction = largest.unwrap_or_default();
        let mut stats = ScheduleStats {
            periods: self.allocations.len().saturating_sub(1),
            longest_lax: longest(&self.lax),
            transaction,
            ..ScheduleStats::default()
        };
        let mut debt = Duration::ZERO;
        for bounds in self.allocations.windows(2) {
            let used = self.used(bounds[0], bounds[1]);
            debt = (used + debt).saturating_sub(self.contract.slice);
            stats.overrun = stats.overrun.max(debt);
            stats.broken += usize::from(debt > transaction);
        }
        stats
    }

    /// What it was charged for what began in `from..to`.
    fn used(&self, from: Duration, to: Duration) -> Duration {
        let within = |spans: &[Interval]| -> Duration {
            let first = spans.partition_point(|span| span.from < from);
            let last = spans.partition_point(|span| span.from < to);
            spans[first..last].iter().map(|span| span.charged).sum()
        };
        within(&self.transactions) + within(&self.lax)
    }
}

fn since(time: Time) -> Duration {
    Nanos(time.0).into()
}

/// The longest stretch: spans that touch are one.
fn longest(spans: &[Interval]) -> Duration {
    let mut longest = Duration::ZERO;
    let mut began = None;
    let mut last = None;
    for span in spans {
        if last != Some(span.from) {
            began = Some(span.from);
        }
        last = Some(span.to);
        longest = longest.max(span.to.saturating_sub(began.unwrap_or(span.from)));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_kept(stats: &ScheduleStats, contract: &DiskShare) -> bool {
        stats.longest_lax <= contract.laxity && stats.broken == 0
    }

    fn charged(client: &Client) -> Duration {
        let spans = client.transactions.iter().chain(&client.lax);
        spans.map(|span| span.charged).sum()
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn span(from: u64, to: u64) -> Interval {
        Interval {
            from: ms(from),
            to: ms(to),
            charged: ms(to - from),
        }
    }

    fn client(transactions: &[(u64, u64)], lax: &[(u64, u64)]) -> Client {
        Client {
            name: "a".into(),
            contract: DiskShare {
                slice: ms(25),
                period: ms(250),
                laxity: ms(10),
            },
            transactions: transactions.iter().map(|(f, t)| span(*f, *t)).collect(),
            lax: lax.iter().map(|(f, t)| span(*f, *t)).collect(),
            allocations: (0..5).map(|k| ms(250 * k)).collect(),
        }
    }

    #[test]
    fn what_the_trace_says_of_others_or_of_slack_time_is_not_charged() {
        let transaction = |client, at, slack| TraceEvent::Transaction {
            started: Time(at),
            elapsed: Nanos(10),
            charge: Nanos(7),
            client,
            op: disk::cost_model::Op::Read,
            bytes: 4096,
            slack,
        };
        let events = [
            TraceEvent::Allocation {
                at: Time(1),
                client: 3,
                remaining: 0,
                deadline: Time(100),
            },
            transaction(3, 40, false),
            transaction(4, 45, false),
            transaction(3, 20, true),
            TraceEvent::Lax {
                from: Time(50),
                to: Time(55),
                client: 3,
            },
        ];
        let client = Client::of("a", client(&[], &[]).contract, 3, &events);
        assert_eq!(charged(&client), Duration::from_nanos(12));
        assert_eq!(client.allocations, [Duration::from_nanos(1)]);
        assert!(client.transactions.is_sorted_by_key(|span| span.from));
    }

    #[test]
    fn a_slice_in_every_period_breaks_nothing() {
        let client = client(&[(0, 20), (250, 270), (510, 535)], &[(20, 25)]);
        let stats = client.stats();
        assert!(is_kept(&stats, &client.contract));
        assert_eq!((stats.periods, stats.overrun), (4, Duration::ZERO));
        assert_eq!(charged(&client), ms(70));
    }

    #[test]
    fn a_transaction_too_much_is_no_harm_where_it_is_repaid() {
        // Nemesis, 7.2.2: three transactions in some periods, fewer in the one after.
        let three_then_two = [(0, 10), (10, 20), (20, 30), (250, 260), (260, 270)];
        let client = client(&three_then_two, &[]);
        let stats = client.stats();
        assert!(is_kept(&stats, &client.contract), "{stats:?}");
        assert_eq!(stats.overrun, ms(5));
    }

    #[test]
    fn a_debt_that_is_never_repaid_is_found() {
        let always_three: Vec<_> = (0..4)
            .flat_map(|k| [0, 10, 20].map(|at| (250 * k + at, 250 * k + at + 10)))
            .collect();
        let client = client(&always_three, &[]);
        let stats = client.stats();
        assert_eq!((stats.overrun, stats.broken), (ms(20), 2));
        assert!(!is_kept(&stats, &client.contract));
    }

    #[test]
    fn an_overrun_by_more_than_a_transaction_is_found_at_once() {
        let client = client(&[(0, 10), (10, 20), (20, 30), (30, 40)], &[]);
        assert_eq!(client.stats().broken, 1);
    }

    #[test]
    fn being_lax_in_pieces_is_being_lax_at_a_stretch() {
        let client = client(&[], &[(0, 6), (6, 11), (300, 309)]);
        let stats = client.stats();
        assert_eq!(stats.longest_lax, ms(11));
        assert!(!is_kept(&stats, &client.contract));
    }
}
