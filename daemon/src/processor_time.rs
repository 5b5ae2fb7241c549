//! Disk time comes with the processor time that using it takes.
//!
//! From *Self-Paging in the Nemesis Operating System*: a domain has guarantees of both, and a
//! promise of one is worth little without the other. Beside eight threads that compute on two
//! processors, a pager with 100 ms of the disk in each 250 moved 4.5 Mbit/s where a quiet machine
//! gives it 222, charged the same disk time: its thread waited for a processor after each
//! completion. With the most weight that a thread can have it moved 45, with real-time priority
//! 185 (`selfpage bench qos --only figure7 --busy`).
//!
//! While threads of the machine wait for processors, the threads that wait for a tenant's pages
//! are lent real-time priority ([`host::lent_priority`]), as far as the tenant's budget reaches
//! ([`budget`]): handler and evictor threads, linked threads that fault, and the program's threads
//! that faulted. The tenant names them with its requests (`disk::usd::WaitingThreads`); the daemon
//! verifies that they are the tenant's, measures how long they ran, and ends the priority.
//!
//! Where the processors have spare time, priority is lent only to tenants that page little: threads wait there because pagers run in bursts, as the disk's schedule
//! lets them, and a tenant that is held to its share of the disk gains nothing by a processor at once. Where no processor time is spare,
//! priority is lent to each tenant within its budget.
//!
//! redis-server beside stress-ng, with half of the disk and a tenth (medians of 4 runs of `selfpage bench qos --only redis --phase 15
//! --repeats 1`, the last line of 2); without a contract: a program beside both that wakes each 2 ms, how late it has its processor:
//!
//! | with spare processor time, lent to | system: p99, p99.9, ms | with compressed RAM | with slack time | without a contract: p99, p99.9 |
//! |---|---|---|---|---|
//! | none | 1.6, 3.7 | 2.5, 7.8 | 2.0, 5.3 | 0.9, 2.2 |
//! | each tenant within its budget | – | – | – | 2.6, 8 |
//! | those whose pagers run for less than their slice | 0.6, 1.9 | 0.6, 2.3 | 1.3, 3.2 | 1.1, 3.7 |
//! | those whose pagers run for less than a quarter of it | 0.7, 2.1 | 0.7, 2.2 | 0.8, 1.5 | 0.7, 2.0 |
//!
//! The last two differ for a tenant that reads one page after the other beside such a neighbour: 0.60 of its reads alone where it has priority,
//! 0.83 without, as its threads take the processor that the disk's thread polls on (`--only neighbour --arms system --phase 10`).
//!
//! Rules:
//! - The daemon's loop has a higher priority, so that it can end the lent one. Where no processor time is spare, the disk's thread has the
//!   priority that is lent, and takes turns: it works for milliseconds on end for a tenant with many requests, and a thread of
//!   another tenant that woke on its processor waited for that long. Beside a neighbour with slack time
//!   a victim's p99 was 2.4 to 5 ms with a higher priority, 0.8 to 1.1 with the same or a lower one; with
//!   a lower one each wake-up takes its processor, and pages were read at four fifths of the rate.
//! - On a machine where no thread waits for a processor, no priority is lent: with it a page took 130 us instead of 115 (p50).
//! - Where the kernel permits no real-time priority (no CAP_SYS_NICE, a control group without
//!   real-time budget), the daemon's own threads have weight ([`crate::urgent`]), tenants' have none.

mod budget;
mod spare_time;
mod thread;

use crate::fault_rates::FaultRates;
use crate::refusal::Refusal;
use crate::tenant::TenantPhase;
use crate::tenants::Tenants;
use budget::{Demand, ProcessorBudget, RunTime};
use disk::time::Time;
use disk::usd::{Usd, WaitingThread, WaitingThreads};
use host::lent_priority;
use protocol::TenantNumber;
use protocol::contract_spec::DiskSpec;
use rate::{Capacity, TimeNs};
use rustix::process::Pid;
use spare_time::SpareTime;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thread::TenantThread;
use wired::sched_class;

/// How often the use of priority is measured, and so the most by which a thread can overrun its budget.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long a thread that names no request is remembered: several transactions of a slow disk, and the time between two
/// requests of a tenant whose pages mostly come from compressed RAM.
const FORGET_AFTER: Duration = Duration::from_secs(1);

/// Threads of a tenant that are verified at a time: each takes some reads of /proc, which its person is charged for
/// ([`crate::loop_time`]). A person that has used its part of the loop's time has none verified.
const MAX_NEW: usize = 4;

/// The part of the time, of one processor, in which threads wait: above the first priority is lent,
/// below the second no longer. A victim that pages alone waits 0.02 of it (0.1 with requests now and
/// then), beside a neighbour that is held to a tenth of the disk 0.2 to 0.6, beside one with slack time
/// 1 (`selfpage bench qos --only neighbour --arms system`).
const PRESSED: [f64; 2] = [0.3, 0.15];

/// The part of the time as in [`PRESSED`], above the first of which the disk's thread no longer polls for many requests, and
/// below the second of which it does again.
const CROWDED: [f64; 2] = [0.15, 0.1];

/// The spare part of the processors' time: below the first the demand is [`Demand::Always`], above the second it is
/// [`Demand::Bursts`] again.
const SPARE: [f64; 2] = [0.1, 0.2];

const WITHOUT: &str = "beside programs that compute its threads wait for a processor after each page: the daemon may not \
                       give them real-time priority; run it with CAP_SYS_NICE, in a control group with real-time budget, or \
                       set disk.processor_time = false";

/// The processor time of one tenant.
struct TenantTime {
    budget: ProcessorBudget,
    waiting: Arc<WaitingThreads>,
    threads: Vec<TenantThread>,
}

/// The processor time of all tenants.
pub(super) struct ProcessorTime {
    begin: Instant,
    /// True if the configuration has disk time come with processor time.
    is_enabled: bool,
    /// True if, in addition, the kernel permits real-time priority.
    is_permitted: bool,
    /// True while priority is lent.
    is_lending: bool,
    /// True if the disk's thread has been set not to poll for many requests, since threads wait for processors.
    is_crowded: bool,
    next: Duration,
    /// When the stall was measured last, and the total until then.
    measured: (Duration, Duration),
    spare: SpareTime,
    demand: Demand,
    tenants: BTreeMap<TenantNumber, TenantTime>,
}

impl ProcessorTime {
    /// Lends no priority yet, and never any if not `is_enabled`.
    pub fn new(is_enabled: bool) -> Self {
        Self {
            begin: Instant::now(),
            is_permitted: is_enabled && lent_priority::is_permitted(),
            is_enabled,
            is_lending: false,
            is_crowded: false,
            next: Duration::ZERO,
            measured: Default::default(),
            spare: SpareTime::new(),
            demand: Demand::Bursts,
            tenants: BTreeMap::new(),
        }
    }

    /// The processor time that comes with a share of the disk.
    pub fn of_disk(&self, disk: DiskSpec) -> Capacity {
        match self.is_permitted {
            true => Capacity::of(nanos(disk.slice), nanos(disk.period)),
            false => Capacity::ZERO,
        }
    }

    /// Refuses a share of the disk whose processor time is promised to others; `but` is a tenant that has the share already.
    pub fn check(
        &self,
        disk: DiskSpec,
        tenants: &Tenants,
        but: Option<TenantNumber>,
        fault_rates: &mut FaultRates,
    ) -> Result<(), Refusal> {
        fault_rates.check_paging(self.of_disk(disk), self.promised(tenants, but))
    }

    /// The processor time promised to all tenants but `but`.
    pub fn promised(&self, tenants: &Tenants, but: Option<TenantNumber>) -> Capacity {
        let others = tenants.iter().filter(|(number, _)| Some(*number) != but);
        let each = others.map(|(_, tenant)| self.of_disk(tenant.record.terms.disk));
        each.fold(Capacity::ZERO, Capacity::plus)
    }

    /// The warning for a new tenant, if its disk time comes without processor time though it should.
    pub fn warning(&self) -> &'static str {
        match self.is_enabled && !self.is_permitted {
            true => WITHOUT,
            false => "",
        }
    }

    /// Time until the next measurement, while priority is lent.
    pub fn timeout(&self) -> Option<Duration> {
        let left = self.next.saturating_sub(self.begin.elapsed());
        self.is_lending.then_some(left)
    }

    /// Decides, by the time that threads of the machine have waited for a processor so far, whether priority is lent.
    pub fn on_stall(&mut self, stall: Duration, usd: &Usd) {
        let now = self.begin.elapsed();
        let (then, before) = std::mem::replace(&mut self.measured, (now, stall));
        let passed = now.saturating_sub(then);
        let part = stall.saturating_sub(before).div_duration_f64(passed);
        let spare = self.spare.part();
        let least = CROWDED[usize::from(self.is_crowded)];
        if self.is_crowded != (part > least) {
            self.is_crowded = !self.is_crowded;
            usd.set_crowded(self.is_crowded);
        }
        match self.is_lending {
            false if self.is_permitted && part > PRESSED[0] => {
                let raised = sched_class::set_real_time(0, lent_priority::DAEMON);
                self.is_permitted = raised.is_ok();
                self.is_lending = self.is_permitted;
            }
            true if part < PRESSED[1] => {
                self.tenants.clear();
                self.is_lending = false;
                let _ = sched_class::set_class(0, sched_class::ORDINARY);
            }
            _ => {}
        }
        let demand =
            match self.is_lending && spare < SPARE[usize::from(self.demand == Demand::Always)] {
                true => Demand::Always,
                false => Demand::Bursts,
            };
        if demand != self.demand {
            self.demand = demand;
            usd.set_real_time((demand == Demand::Always).then_some(lent_priority::DISK));
        }
    }

    /// Measures run times, charges budgets, and lends or ends priority, if it is time.
    pub fn tick(&mut self, usd: &Usd, tenants: &mut Tenants) {
        let now = self.begin.elapsed();
        if !self.is_lending || now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        self.tenants.retain(|number, _| {
            let tenant = tenants.get(*number);
            tenant.is_some_and(|tenant| tenant.client.is_some())
        });
        for number in tenants.numbers() {
            let Some(tenant) = tenants.get(number) else {
                continue;
            };
            let Some(client) = tenant.client else {
                continue;
            };
            if matches!(tenant.phase, TenantPhase::Away(_)) {
                continue;
            }
            let disk = tenant.record.terms.disk;
            let time = match self.tenants.entry(number) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let Some(waiting) = usd.waiting_threads(client) else {
                        continue;
                    };
                    entry.insert(TenantTime {
                        budget: ProcessorBudget::new(disk.slice, disk.period, now),
                        waiting,
                        threads: Vec::new(),
                    })
                }
            };
            time.budget.set_terms(disk.slice, disk.period, now);
            // /proc is read only for new threads: there may be hundreds of tenants that page nothing.
            let leader = || match tenants.is_over_time(number) {
                true => None,
                false => tenant.record.process(),
            };
            let (ran, verified) = time.tick(now, usd.now(), leader, self.demand);
            if let Some(begin) = verified {
                tenants.charge_work(number, begin);
            }
            if let Some(tenant) = tenants.get_mut(number) {
                tenant.ran_first += ran;
            }
        }
    }
}

impl TenantTime {
    /// Returns the time that its threads ran with priority since the last call, and when it began to verify new ones, if
    /// there were any.
    fn tick(
        &mut self,
        now: Duration,
        disk_now: Time,
        leader: impl Fn() -> Option<Pid>,
        demand: Demand,
    ) -> (Duration, Option<Instant>) {
        let ran = self.threads.iter_mut().map(TenantThread::ran);
        let ran = ran.fold(RunTime::default(), RunTime::plus);
        self.budget.charge(ran, now);
        let named: Vec<_> = self.waiting.seen_within(FORGET_AFTER, disk_now).collect();
        let is_named = |one: &TenantThread| {
            let same =
                |other: &WaitingThread| (other.thread, other.submits) == (one.thread, one.submits);
            named.iter().any(same)
        };
        self.threads.retain(is_named);
        let is_new =
            |other: &&WaitingThread| self.threads.iter().all(|one| one.thread != other.thread);
        let new: Vec<_> = named.iter().filter(is_new).take(MAX_NEW).collect();
        let mut verified = None;
        if let Some(leader) = (!new.is_empty()).then(leader).flatten() {
            verified = Some(Instant::now());
            let new = new
                .into_iter()
                .map(|named| TenantThread::new(*named, leader));
            self.threads.extend(new);
        }
        for thread in &mut self.threads {
            thread.set_first(self.budget.covers(thread.submits, demand));
        }
        (ran.first, verified)
    }
}

fn nanos(time: Duration) -> TimeNs {
    TimeNs::try_from(time.as_nanos()).unwrap_or(TimeNs::MAX)
}
