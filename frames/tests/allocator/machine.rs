//! A machine on a virtual clock: tenants of every character, and the allocator's actions.

use frames::Contract;
use frames::allocator::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Longest time from the order to kill until the frames are free.
pub const KILLING: Duration = Duration::from_millis(50);

/// How a tenant responds to a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Character {
    /// Cleans as fast as its slice allows, begins as late as its slice may come, and answers.
    Honest,
    /// The same, but answers at the deadline.
    Unhurried,
    /// The same, but answers after the deadline.
    Slow,
    /// Answers at once, with nothing unused.
    Liar,
    /// Does not answer.
    Refuser,
}

/// The state of a tenant.
pub struct Holder {
    pub character: Character,
    pub cleaning: CleaningRate,
    pub limit: u32,
    pub used: u32,
    pub ready: u32,
    /// Frames that it cannot release.
    pub fixed: u32,
    /// Resident memory that is not paged, in frames.
    pub unpaged: u32,
    /// When it will have cleaned all that was demanded.
    busy: Duration,
}

impl Holder {
    /// A tenant that uses all of its `n` frames.
    fn new(character: Character, cleaning: CleaningRate, n: u32) -> Self {
        Self {
            character,
            cleaning,
            limit: n,
            used: n,
            ready: 0,
            fixed: 0,
            unpaged: 0,
            busy: Duration::ZERO,
        }
    }
}

enum Event {
    Answer {
        tenant: TenantId,
        k: u32,
        honest: bool,
    },
    Gone(TenantId),
}

/// The machine.
pub struct Machine {
    pub allocator: Allocator,
    pub now: Duration,
    pub holders: BTreeMap<TenantId, Holder>,
    pub killed: Vec<(TenantId, Violation)>,
    pub told: Vec<(TenantId, TenantNotice)>,
    pub revocations: u32,
    /// When frames were last granted.
    pub granted: Duration,
    /// How long each kill takes.
    pub killing: Duration,
    /// How long threads waited for a processor.
    stalled: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    sequence: u64,
}

/// T = 100 ms, as the paper proposes.
pub fn config(managed: u32) -> AllocatorConfig {
    AllocatorConfig {
        managed,
        deadline: Duration::from_millis(100),
        stall: Duration::from_secs(1),
        notice: Duration::from_secs(10),
        allowance: 4,
        topology: MachineTopology {
            huge: true,
            nodes: 1,
        },
    }
}

impl Machine {
    pub fn new(managed: u32) -> Self {
        Self::over(Allocator::new(config(managed)))
    }

    pub fn over(allocator: Allocator) -> Self {
        Self {
            allocator,
            now: Duration::ZERO,
            holders: BTreeMap::new(),
            killed: Vec::new(),
            told: Vec::new(),
            revocations: 0,
            granted: Duration::ZERO,
            killing: KILLING - Duration::from_millis(1),
            stalled: Duration::ZERO,
            events: BTreeMap::new(),
            sequence: 0,
        }
    }

    pub fn admit(
        &mut self,
        id: u32,
        (g, x): (u32, u32),
        frames_per_second: u32,
        character: Character,
    ) -> Result<TenantId, AllocatorError> {
        let cleaning = CleaningRate {
            frames_per_second,
            delay: Duration::ZERO,
        };
        self.admit_with(id, (g, x), cleaning, character)
    }

    pub fn admit_with(
        &mut self,
        id: u32,
        (g, x): (u32, u32),
        cleaning: CleaningRate,
        character: Character,
    ) -> Result<TenantId, AllocatorError> {
        let id = TenantId(id);
        self.allocator.admit(id, Contract { g, x }, cleaning)?;
        self.holders.insert(id, Holder::new(character, cleaning, 0));
        Ok(id)
    }

    /// A tenant of the previous daemon reconnects with the frames it owns, all of them in use.
    pub fn readmit(
        &mut self,
        id: u32,
        (g, x): (u32, u32),
        n: u32,
        frames_per_second: u32,
        character: Character,
    ) -> Result<TenantId, AllocatorError> {
        let (id, delay) = (TenantId(id), Duration::ZERO);
        let cleaning = CleaningRate {
            frames_per_second,
            delay,
        };
        self.allocator.readmit(id, Contract { g, x }, n, cleaning)?;
        self.holders.insert(id, Holder::new(character, cleaning, n));
        let actions = self.allocator.tick(self.now);
        self.execute(actions);
        Ok(id)
    }

    /// Threads have waited this long for a processor.
    pub fn on_stalled(&mut self, total: Duration) {
        self.stalled = total;
        self.allocator.on_stalled(total);
    }

    /// Reports the use of all tenants, as the daemon does before it passes a request on.
    pub fn report_usage(&mut self) {
        for (id, holder) in &self.holders {
            let (used, ready, fixed) = (holder.used, holder.ready, holder.fixed);
            let usage = FrameUsage { used, ready, fixed };
            self.allocator.report_usage(*id, usage);
        }
    }

    pub fn request(&mut self, tenant: TenantId, k: u32) -> Result<(), AllocatorError> {
        self.report_usage();
        let request = FrameRequest {
            k,
            placement: Placement::Any,
        };
        let actions = self.allocator.request(tenant, request, self.now)?;
        self.execute(actions);
        Ok(())
    }

    /// Requests frames and uses all that are granted at once.
    pub fn fill(&mut self, tenant: TenantId, k: u32) {
        self.request(tenant, k).unwrap();
        self.use_all(tenant);
    }

    pub fn use_all(&mut self, tenant: TenantId) {
        if let Some(holder) = self.holders.get_mut(&tenant) {
            holder.used = holder.limit;
        }
    }

    /// Uses so many quarters of its frames, `ready` of them clean.
    pub fn use_some(&mut self, tenant: TenantId, quarters: u32, ready: u32) {
        if let Some(holder) = self.holders.get_mut(&tenant) {
            // Frames that it cleans for others stay in use until it has answered.
            holder.used = holder.used.max(holder.limit * quarters / 4);
            holder.ready = holder.ready.max(ready).min(holder.used);
        }
    }

    /// A tenant releases frames by itself.
    pub fn give_back(&mut self, tenant: TenantId, k: u32) {
        if let Some(holder) = self.holders.get_mut(&tenant) {
            let k = k.min(holder.limit);
            holder.limit -= k;
            holder.used = holder.used.min(holder.limit);
            let actions = self.allocator.on_taken(tenant, k, self.now);
            self.execute(actions);
        }
    }

    pub fn n(&self, tenant: TenantId) -> u32 {
        self.allocator.stats(tenant).map_or(0, |view| view.n)
    }

    pub fn on_tenant_gone(&mut self, tenant: TenantId) {
        self.holders.remove(&tenant);
        let actions = self.allocator.on_tenant_gone(tenant, self.now);
        self.execute(actions);
    }

    pub fn set_contract(
        &mut self,
        tenant: TenantId,
        (g, x): (u32, u32),
    ) -> Result<(), AllocatorError> {
        let contract = Contract { g, x };
        let actions = self.allocator.set_contract(tenant, contract, self.now)?;
        self.execute(actions);
        Ok(())
    }

    /// Lets time pass, with all events in it.
    pub fn run_until(&mut self, end: Duration) {
        loop {
            let event = self.events.keys().next().copied();
            let tick = self.allocator.next_timeout().map(|at| at.max(self.now));
            // Tenants' answers are passed on before the clock is checked.
            match (event, tick) {
                (Some((at, number)), tick) if at <= end && tick.is_none_or(|tick| at <= tick) => {
                    self.now = at;
                    if let Some(event) = self.events.remove(&(at, number)) {
                        self.happen(event);
                    }
                }
                (_, Some(at)) if at <= end => {
                    self.now = at;
                    let actions = self.allocator.tick(at);
                    self.execute(actions);
                }
                _ => break,
            }
            self.check();
        }
        self.now = end;
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Gone(tenant) => self.on_tenant_gone(tenant),
            Event::Answer { tenant, k, honest } => {
                if let Some(holder) = self.holders.get_mut(&tenant) {
                    if honest {
                        holder.used = holder.used.saturating_sub(k);
                    }
                    let actions = self.allocator.on_answer(tenant, k, self.now);
                    self.execute(actions);
                }
            }
        }
    }

    fn later(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((at.max(self.now), self.sequence), event);
    }

    pub fn execute(&mut self, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(order) = actions.pop_front() {
            match order {
                Action::Grant { tenant, k } => {
                    self.granted = self.now;
                    self.holders.get_mut(&tenant).expect("a tenant").limit += k;
                }
                Action::TakeUnused { victim, k } => {
                    let holder = self.holders.get_mut(&victim);
                    let took = holder.map_or(0, |holder| {
                        let took = k.min(holder.limit - holder.used.min(holder.limit));
                        holder.limit -= took;
                        took
                    });
                    actions.extend(self.allocator.on_taken(victim, took, self.now));
                }
                Action::Revoke {
                    victim,
                    k,
                    keep,
                    by,
                } => self.revoke(victim, k, keep, by),
                Action::Kill { victim, violation } => {
                    self.killed.push((victim, violation));
                    self.later(self.now + self.killing, Event::Gone(victim));
                }
                Action::Notify { tenant, notice } => self.told.push((tenant, notice)),
            }
        }
        self.check();
    }

    fn revoke(&mut self, victim: TenantId, k: u32, keep: u32, by: Duration) {
        self.revocations += 1;
        let now = self.now;
        assert!(by > now, "a deadline is in the future");
        let Some(holder) = self.holders.get_mut(&victim) else {
            return;
        };
        assert!(keep < holder.limit, "at least one frame is demanded");
        let clean = k.min(holder.ready);
        holder.ready -= clean;
        let start = if holder.busy > now {
            holder.busy
        } else {
            now + holder.cleaning.delay
        };
        let rate = u64::from(holder.cleaning.frames_per_second.max(1));
        let work = u64::from(k - clean) * 1_000_000_000;
        let done = match work {
            0 => now,
            _ => start + Duration::from_nanos(work / rate),
        };
        let honest = holder.character != Character::Liar;
        let at = match holder.character {
            Character::Honest | Character::Unhurried => {
                assert!(done <= by, "{k} frames by {by:?} are too many: {done:?}");
                let waits = holder.character == Character::Unhurried;
                if waits { by } else { done }
            }
            Character::Slow => by + Duration::from_micros(1),
            Character::Liar => now,
            Character::Refuser => return,
        };
        holder.busy = holder.busy.max(done);
        self.later(
            at,
            Event::Answer {
                tenant: victim,
                k,
                honest,
            },
        );
    }

    /// The invariants of every moment.
    pub fn check(&self) {
        let views: Vec<_> = self.allocator.all_stats().collect();
        let owned: u32 = views.iter().map(|view| view.held() - view.beyond).sum();
        assert!(
            owned <= self.allocator.managed(),
            "never more than is managed"
        );
        assert!(self.allocator.guaranteed() <= self.allocator.managed());
        for view in &views {
            let limit = self.holders[&view.tenant].limit;
            assert_eq!(view.n, limit, "the allocator and the limit agree");
        }
        for waiting in self.allocator.pending() {
            let due = waiting.due.unwrap_or(self.now);
            let put_off = self.stalled.min(config(0).stall);
            assert!(
                due + put_off + KILLING >= self.now,
                "promised by {due:?}: {waiting:?}"
            );
        }
        for (victim, violation) in &self.killed {
            let character = self.holders.get(victim).map(|holder| holder.character);
            let kept = [Character::Honest, Character::Unhurried].map(Some);
            assert!(!kept.contains(&character), "{violation}");
        }
    }
}
