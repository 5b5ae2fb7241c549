//! A user that delays its own transactions, by any contracts: what it costs the others.

mod common;

use common::contract;
use disk::atropos::{Atropos, ClientId, Decision, DiskContract, InFlightId};
use disk::atropos::{TransactionDesc, Utilization, WORKERS};
use disk::cost_model::Op;
use disk::time::{Nanos, Time};
use proptest::prelude::*;

const BOUND: Nanos = Nanos::micros(480);
const PAGE_COST: Nanos = Nanos(7_500);
/// The time from a request that has the disk to itself to its completion.
const LATENCY: Nanos = Nanos::micros(80);
/// The victim's work on a page.
const THINK: Nanos = Nanos::micros(100);
const STEP: Nanos = Nanos::micros(20);

/// What users other than the victim do with a file whose lock they hold.
#[derive(Clone, Copy, Debug)]
struct Attack {
    users: u32,
    /// Contracts of each user, which share what it may have.
    contracts: u32,
    /// The share of each user, in thousandths.
    share: u64,
    period: Nanos,
    /// For how long the file is held, and let go between.
    held: Nanos,
    free: Nanos,
    /// A contract ends after so long, and the next begins.
    renewed: Nanos,
    extra: bool,
    /// The device is so many times slower than its model.
    slower: u64,
}

struct Flight {
    ticket: InFlightId,
    /// None for the victim's.
    attacker: Option<usize>,
    started: Time,
    done: Option<Time>,
}

struct Attacker {
    user: u32,
    id: ClientId,
    since: Time,
}

struct Simulation {
    disk: Atropos<()>,
    now: Time,
    free_at: Time,
    flights: Vec<Flight>,
    attack: Attack,
    attackers: Vec<Attacker>,
    victim: ClientId,
    /// When the victim's request was submitted, and its waits.
    asked: Option<Time>,
    waits: Vec<Nanos>,
    thinks_until: Time,
    /// Most transactions of one user and of all in flight.
    most: (usize, usize),
}

impl Attack {
    fn contract(&self) -> DiskContract {
        let slice = self.period.0 * self.share / 1000 / u64::from(self.contracts);
        DiskContract {
            period: self.period,
            slice: Nanos(slice.max(1)),
            extra: self.extra,
            laxity: Nanos::ZERO,
        }
    }

    fn is_held(&self, now: Time) -> bool {
        now.0 % (self.held + self.free).0.max(1) < self.held.0
    }
}

impl Simulation {
    fn new(attack: Attack) -> Self {
        let mut disk = Atropos::new(Utilization::WHOLE, BOUND, ());
        let victim = disk.admit(Time(0), contract(100, 250, 0)).unwrap();
        let admit = |number: u32| Attacker {
            user: number % attack.users,
            id: disk
                .admit_for(Time(0), number % attack.users, attack.contract())
                .unwrap(),
            since: Time(0),
        };
        let attackers = (0..attack.users * attack.contracts).map(admit).collect();
        Self {
            disk,
            now: Time(0),
            free_at: Time(0),
            flights: Vec::new(),
            attack,
            attackers,
            victim,
            asked: None,
            waits: Vec::new(),
            thinks_until: Time(0),
            most: (0, 0),
        }
    }

    fn submit(&mut self, client: ClientId, tag: usize) {
        let job = TransactionDesc {
            op: Op::Read,
            bytes: 4096,
            cost: PAGE_COST,
            tag: tag as u64,
        };
        self.disk.submit(self.now, client, job);
    }

    /// Attackers that end their contracts and begin others, with 128 requests each at all times.
    fn attack(&mut self) {
        for at in 0..self.attackers.len() {
            let Attacker { user, id, since } = self.attackers[at];
            if self.now - since >= self.attack.renewed {
                self.disk.remove(self.now, id);
                // The place of its contract is free as soon as it has ended.
                let contract = self.attack.contract();
                self.attackers[at].id = self.disk.admit_for(self.now, user, contract).unwrap();
                self.attackers[at].since = self.now;
            }
            let id = self.attackers[at].id;
            let queued = self.disk.client(id).unwrap().queued;
            (queued..128).for_each(|_| self.submit(id, at));
        }
    }

    fn complete(&mut self) {
        let held = self.attack.is_held(self.now);
        for flight in &mut self.flights {
            let waits = flight.attacker.is_some() && held;
            if flight.done.is_none() && !waits {
                self.free_at = self.free_at.max(self.now) + Nanos(PAGE_COST.0 * self.attack.slower);
                flight.done = Some(self.free_at.max(flight.started + LATENCY));
            }
        }
        let now = self.now;
        let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flights)
            .into_iter()
            .partition(|flight| flight.done.is_some_and(|done| done <= now));
        self.flights = rest;
        for flight in done {
            self.disk.complete(now, flight.ticket, now - flight.started);
            if flight.attacker.is_none()
                && let Some(asked) = self.asked.take()
            {
                self.waits.push(now - asked);
                self.thinks_until = now + THINK;
            }
        }
    }

    fn start(&mut self) {
        while let Decision::Dispatch(start) = self.disk.next(self.now) {
            let attacker = (start.client != self.victim).then_some(start.job.tag as usize);
            self.flights.push(Flight {
                ticket: start.ticket,
                attacker,
                started: self.now,
                done: None,
            });
        }
        let attackers = &self.attackers;
        let of_user = |user: u32| {
            let is_its =
                |flight: &&Flight| flight.attacker.is_some_and(|at| attackers[at].user == user);
            self.flights.iter().filter(is_its).count()
        };
        let one = (0..self.attack.users).map(of_user).max().unwrap_or(0);
        self.most = (self.most.0.max(one), self.most.1.max(self.flights.len()));
    }

    /// The victim reads one page after another for that long.
    fn run(mut self, time: Nanos) -> Self {
        while self.now < Time(0) + time {
            self.complete();
            self.attack();
            if self.asked.is_none() && self.now >= self.thinks_until {
                self.asked = Some(self.now);
                let victim = self.victim;
                self.submit(victim, 0);
            }
            self.start();
            self.now = self.now + STEP;
        }
        self
    }

    /// The victim's time in waits that are longer than `most`.
    fn waited_over(&self, most: Nanos) -> Nanos {
        let long = self.waits.iter().filter(|wait| **wait > most);
        let open = self.asked.map_or(Nanos::ZERO, |asked| self.now - asked);
        let open = if open > most { open } else { Nanos::ZERO };
        long.fold(open, |sum, wait| sum + *wait)
    }
}

fn attacks() -> impl Strategy<Value = Attack> {
    let contracts = (
        1u32..5,
        1u32..5,
        1u64..100,
        prop::sample::select(vec![10, 50, 250, 5_000]),
    );
    // From 100 us to 400 ms, and to 12 ms.
    let times = (0u32..12, 100u64..200, 0u32..7, 50u64..1_500);
    (contracts, times, any::<bool>(), 1u64..4).prop_map(|(contracts, times, extra, slower)| {
        let (users, contracts, share, period) = contracts;
        let (held, base, free, renewed) = times;
        Attack {
            users,
            contracts,
            share,
            period: Nanos::millis(period),
            held: Nanos::micros(base << held),
            free: Nanos::micros(base << free),
            renewed: Nanos::millis(renewed),
            extra,
            slower,
        }
    })
}

const TIME: Nanos = Nanos::millis(1_200);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// Holding its files, ending contracts and making others gains a user little: the others lose its patience, once, and
    /// for the rest no more than twice what they lose to the same user's honest reads.
    #[test]
    fn a_user_that_holds_its_files_costs_others_its_patience_and_twice_its_share(attack in attacks()) {
        let honest = Attack { held: Nanos::ZERO, ..attack };
        let honest = Simulation::new(honest).run(TIME);
        let done = Simulation::new(attack).run(TIME);
        // One more transaction of each user may begin while the first is not late yet.
        let patience = Nanos::millis(u64::from(attack.users) * 2 * 50);
        // Each user in turn, and the queue of the device.
        let slow = Nanos(BOUND.0 * attack.slower * 3 * u64::from(attack.users + 1));
        let waited = done.waited_over(slow);
        prop_assert!(waited <= patience, "{waited} in waits over {slow}");
        let left = TIME - patience;
        let fair = honest.waits.len() as u64 * left.0 / TIME.0 / 3;
        prop_assert!(done.waits.len() as u64 >= fair, "{} of {fair}", done.waits.len());
        let (one, all) = done.most;
        prop_assert!(one <= WORKERS as usize / 6 && all < WORKERS as usize / 4 * 3 + 64, "{one} {all}");
    }
}
