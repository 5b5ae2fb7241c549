//! What goes next.

use super::client::Place;
use super::flight::Flight;
use super::{Atropos, Decision, Start};
use crate::time::{Nanos, Time};
use crate::trace::{Event, Trace};

/// The disk is kept for a client that has nothing to submit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    client: u32,
    from: Time,
    /// Charged up to then.
    charged: Time,
}

/// Who is first among those with time left.
enum First {
    Ready(u32),
    /// It has nothing to submit, and lax time left.
    Lax(u32),
    Nobody,
}

impl<T: Trace> Atropos<T> {
    /// Decides what happens now. The caller asks until nothing is started.
    pub fn next(&mut self, now: Time) -> Decision {
        self.settle(now);
        if self.is_full() {
            self.release(None);
            return self.full(now);
        }
        self.allocate_due(now);
        if let Some(at) = self.first_urgent() {
            self.release(None);
            return self.start(now, at, false);
        }
        match self.first(now) {
            First::Ready(at) => {
                self.release(None);
                let at = self.most_pressing(at);
                self.start(now, at, false)
            }
            First::Lax(at) => {
                self.release(Some(at));
                self.keep_for(now, at)
            }
            First::Nobody => {
                self.release(None);
                let clients = &self.clients;
                match self.slack.least(|at| clients[at as usize].tag) {
                    Some(at) => self.start(now, at, true),
                    None => self.nothing(Time::NEVER),
                }
            }
        }
    }

    /// Charges the client that the disk is kept for, up to now or the end of its time.
    pub(super) fn settle(&mut self, now: Time) {
        let Some(hold) = &mut self.hold else {
            return;
        };
        let client = &mut self.clients[hold.client as usize];
        let left = Nanos(client.remaining.max(0).unsigned_abs());
        let to = now.min(client.patience()).min(hold.charged + left);
        let time = to - hold.charged;
        hold.charged = hold.charged.max(to);
        client.charge(time);
        client.totals.lax += time;
        let stretch = hold.charged - hold.from;
        client.totals.longest_lax = client.totals.longest_lax.max(stretch);
        let at = hold.client;
        self.requeue(at);
    }

    /// Keeps the disk for nobody any more, or for nobody but that one.
    fn release(&mut self, but: Option<u32>) {
        let Some(hold) = self.hold.filter(|hold| Some(hold.client) != but) else {
            return;
        };
        self.hold = None;
        if hold.from < hold.charged {
            self.trace.record(Event::Lax {
                from: hold.from,
                to: hold.charged,
                client: self.clients[hold.client as usize].number,
            });
        }
    }

    /// Does not keep the disk for that one any more.
    pub(super) fn let_go_of(&mut self, at: u32) {
        if self.hold.is_some_and(|hold| hold.client == at) {
            self.release(None);
        }
    }

    /// Whether the disk is kept for it since its last transaction ended.
    pub(super) fn is_held_throughout(&self, at: u32) -> bool {
        let unready = self.clients[at as usize].unready;
        self.hold
            .is_some_and(|hold| hold.client == at && hold.from <= unready)
    }

    fn is_full(&self) -> bool {
        self.flights.count() > 0 && self.flights.cost() >= self.bound
    }

    fn full(&mut self, now: Time) -> Decision {
        // With little in flight before something large the device is not as busy as it may be.
        match self.flights.cost().0 >= self.bound.0 / 2 {
            true => self.correction.saturated(now),
            false => self.correction.unsaturated(),
        }
        Decision::Full
    }

    /// The first of those that come from idleness, if it still can be served so.
    fn first_urgent(&mut self) -> Option<u32> {
        while let Some(&at) = self.urgent.front() {
            let client = &self.clients[at as usize];
            if client.place == Place::Runnable && !client.jobs.is_empty() {
                return Some(at);
            }
            self.urgent.pop_front();
        }
        None
    }

    /// The earliest deadline of those that can be served or waited for.
    fn first(&mut self, now: Time) -> First {
        let mut place = 0;
        while let Some((_, at)) = self.runnable.get(place) {
            let client = &self.clients[at as usize];
            if client.is_unready() && client.patience() <= now {
                self.dequeue(at);
                self.clients[at as usize].present = false;
            } else if !client.is_able(&self.correction) {
                self.requeue(at);
            } else if !client.jobs.is_empty() {
                return First::Ready(at);
            } else if client.in_flight > 0 {
                place += 1;
            } else {
                return First::Lax(at);
            }
        }
        First::Nobody
    }

    /// Who is to be served, where `first` has the earliest deadline: itself on a disk that does
    /// one transaction at a time.
    ///
    /// A disk that does many at once is only kept busy by several clients, and who is served
    /// first until its slice is gone leaves the last one alone with what it has outstanding. So
    /// slices are used up in steps, as large as what may be in flight, each due when an even
    /// pace would have it done.
    fn most_pressing(&self, first: u32) -> u32 {
        if self.bound == Nanos::ZERO {
            return first;
        }
        let ready = |&at: &u32| {
            let client = &self.clients[at as usize];
            !client.jobs.is_empty() && client.is_able(&self.correction)
        };
        let due = |&at: &u32| self.clients[at as usize].step_due(self.bound);
        self.runnable
            .clients()
            .filter(ready)
            .min_by_key(due)
            .unwrap_or(first)
    }

    fn keep_for(&mut self, now: Time, at: u32) -> Decision {
        let client = &self.clients[at as usize];
        let left = Nanos(client.remaining.max(0).unsigned_abs());
        let mut until = client.patience().min(now + left);
        if client.deadline > now {
            until = until.min(client.deadline);
        }
        self.hold.get_or_insert(Hold {
            client: at,
            from: now,
            charged: now,
        });
        self.nothing(until)
    }

    /// Nothing is started before `until`, or before somebody's next allocation.
    fn nothing(&mut self, until: Time) -> Decision {
        self.correction.unsaturated();
        let due = self.waiting.get(0).map_or(Time::NEVER, |(due, _)| due);
        match until.min(due) {
            Time::NEVER => Decision::Idle,
            until => Decision::WaitUntil(until),
        }
    }

    fn start(&mut self, now: Time, at: u32, slack: bool) -> Decision {
        let client = &mut self.clients[at as usize];
        let Some(&job) = client.jobs.front() else {
            return Decision::Idle;
        };
        if self.flights.count() > 0 && self.flights.cost() + job.cost > self.bound {
            return self.full(now);
        }
        let charge = client.next_charge(&self.correction);
        client.jobs.pop_front();
        client.in_flight += 1;
        client.last_charge = charge;
        match slack {
            true => {
                client.totals.slack += charge;
                let share = client.share();
                self.slack.served(&mut client.tag, share, charge);
            }
            false => client.charge(charge),
        }
        if client.jobs.is_empty() {
            // What shares the disk uses it while others do: it could have used more.
            client.present &= job.cost >= self.bound;
            self.share_slack(at);
        }
        if self.urgent.front() == Some(&at) {
            self.urgent.pop_front();
        }
        self.requeue(at);
        let ticket = self.flights.add(Flight {
            client: at,
            job,
            charge,
            slack,
            started: now,
        });
        Decision::Start(Start {
            ticket,
            client: self.id(at),
            job,
            charge,
            slack,
        })
    }
}
