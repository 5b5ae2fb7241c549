//! Resident memory that is not paged, and what covers it.

use crate::machine::{Character, Character::*, KILLING, Machine};
use crate::{T, ms};
use frames::allocator::*;
use std::time::Duration;

impl Machine {
    /// The kernel counts a tenant's resident memory, what is not paged included: that is at most
    /// the guarantee in force.
    pub fn count(&mut self, tenant: TenantId) {
        self.report_usage();
        let (Some(view), Some(holder)) = (self.allocator.stats(tenant), self.holders.get(&tenant))
        else {
            return;
        };
        let resident = holder.used + holder.unpaged.min(view.contract.g);
        let actions = self.allocator.on_resident(tenant, resident, self.now);
        self.execute(actions);
    }

    /// The same at the end of each of so many seconds, in which the tenant uses all its frames.
    pub fn count_for(&mut self, tenant: TenantId, seconds: u32) {
        for _ in 0..seconds {
            self.run_for(Duration::from_secs(1));
            self.use_all(tenant);
            self.count(tenant);
        }
    }

    /// The tenant cannot release any of its frames.
    pub fn fix_all(&mut self, tenant: TenantId) {
        if let Some(holder) = self.holders.get_mut(&tenant) {
            holder.fixed = holder.limit;
        }
        self.report_usage();
    }
}

fn unpaged(machine: &Machine, tenant: TenantId) -> (u32, u32) {
    let view = machine.allocator.stats(tenant).unwrap();
    (view.n, view.unpaged)
}

fn set_unpaged(machine: &mut Machine, tenant: TenantId, frames: u32) {
    machine.holders.get_mut(&tenant).unwrap().unpaged = frames;
}

/// A tenant of 500 guaranteed frames that has `filled` of them, and 304 pages of memory that is not paged.
fn with_unpaged(cleaning: u32, character: Character, filled: u32) -> (Machine, TenantId) {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (500, 500), cleaning, character).unwrap();
    machine.fill(tenant, filled);
    set_unpaged(&mut machine, tenant, 304);
    (machine, tenant)
}

#[test]
fn memory_that_is_not_paged_is_covered_by_frames_of_the_guarantee_that_are_not_granted() {
    let (mut machine, tenant) = with_unpaged(100, Honest, 50);
    machine.count_for(tenant, 100);
    assert_eq!(unpaged(&machine, tenant), (50, 300), "within the allowance");
    assert_eq!(
        machine.told,
        [(tenant, TenantNotice::Unpaged { frames: 300 })]
    );
    assert_eq!(machine.allocator.free(), 650, "no other tenant has them");
    machine.fill(tenant, 500);
    assert_eq!(unpaged(&machine, tenant), (200, 300), "together they are g");
    machine.count_for(tenant, 100);
    assert_eq!(machine.killed.len(), 0);
}

#[test]
fn frames_that_the_ledger_has_already_are_moved_to_memory_that_is_not_paged() {
    let (mut machine, tenant) = with_unpaged(1000, Honest, 500);
    machine.count_for(tenant, 100);
    assert_eq!(unpaged(&machine, tenant), (200, 300));
    assert_eq!((machine.killed.len(), machine.allocator.free()), (0, 500));
}

#[test]
fn what_covered_memory_that_is_gone_is_granted_again() {
    let (mut machine, tenant) = with_unpaged(1000, Honest, 500);
    machine.count_for(tenant, 10);
    set_unpaged(&mut machine, tenant, 20);
    machine.count_for(tenant, 1);
    assert_eq!(unpaged(&machine, tenant), (200, 20));
    machine.fill(tenant, 500);
    assert_eq!(unpaged(&machine, tenant), (480, 20));
}

#[test]
fn others_give_back_what_they_were_lent_for_a_guarantee_that_memory_not_paged_needs() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (500, 500), 100, Honest).unwrap();
    let other = machine.admit(2, (100, 1000), 10_000, Honest).unwrap();
    machine.fill(other, 1000);
    set_unpaged(&mut machine, tenant, 304);
    machine.count(tenant);
    machine.count(tenant);
    assert_eq!((machine.n(other), unpaged(&machine, tenant).1), (1000, 0));
    machine.run_for(T);
    assert_eq!((machine.n(other), unpaged(&machine, tenant).1), (700, 300));
}

#[test]
fn a_single_count_covers_nothing() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (500, 500), 100, Honest).unwrap();
    machine.fill(tenant, 50);
    for frames in [300, 0, 300] {
        set_unpaged(&mut machine, tenant, frames);
        machine.count(tenant);
    }
    assert_eq!(unpaged(&machine, tenant), (50, 0));
}

#[test]
fn a_tenant_with_more_resident_than_its_guarantee_and_the_allowance_is_killed() {
    let mut machine = Machine::new(1000);
    let tenant = machine.admit(1, (500, 1000), 1000, Slow).unwrap();
    machine.fill(tenant, 100);
    let resident = |machine: &mut Machine, frames| {
        machine.run_for(ms(1000));
        machine.report_usage();
        let actions = machine.allocator.on_resident(tenant, frames, machine.now);
        machine.execute(actions);
        machine.killed.len()
    };
    for _ in 0..5 {
        assert_eq!(resident(&mut machine, 504), 0);
    }
    assert_eq!(unpaged(&machine, tenant), (100, 400));
    assert_eq!(resident(&mut machine, 600), 0);
    assert_eq!(resident(&mut machine, 600), 0, "it is notified");
    assert_eq!(resident(&mut machine, 600), 1);
    machine.run_for(KILLING);
    assert_eq!(machine.allocator.free(), 1000);
}

#[test]
fn too_many_resident_frames_end_in_bounded_time_however_slow_the_disk_and_in_spite_of_pauses() {
    let mut machine = Machine::new(1_000_000);
    let tenant = machine.admit(1, (100, 100), 1, Slow).unwrap();
    machine.fill(tenant, 100);
    machine.fix_all(tenant);
    let counts = |machine: &mut Machine, counts: &[u32]| {
        for frames in counts {
            machine.run_for(ms(1000));
            let actions = machine.allocator.on_resident(tenant, *frames, machine.now);
            machine.execute(actions);
        }
        (machine.told.len(), machine.killed.len())
    };
    assert_eq!(counts(&mut machine, &[500_000; 4]), (1, 0));
    // At its rate 500,000 s; others would have no more than MAX_REVOCATION for what they give back.
    machine.run_for(MAX_REVOCATION - ms(10_000));
    assert_eq!(
        counts(&mut machine, &[500_000, 500_000, 500_000, 100, 500_000]),
        (1, 0)
    );
    machine.run_for(ms(10_000));
    assert_eq!(counts(&mut machine, &[500_000]), (1, 1));
}

#[test]
fn frames_that_processes_are_guaranteed_or_have_locked_are_not_moved() {
    let (mut machine, tenant) = with_unpaged(1000, Slow, 500);
    machine.holders.get_mut(&tenant).unwrap().fixed = 350;
    machine.count(tenant);
    machine.count(tenant);
    assert_eq!(machine.allocator.stats(tenant).unwrap().owed, 100);
    assert!(
        machine
            .told
            .iter()
            .any(|(_, notice)| matches!(notice, TenantNotice::Over { .. }))
    );
}

#[test]
fn a_tenant_that_does_not_release_frames_for_its_own_memory_is_killed() {
    let (mut machine, tenant) = with_unpaged(1000, Refuser, 500);
    machine.count_for(tenant, 5);
    assert!(matches!(machine.killed[..], [(_, Violation::Late { .. })]));
}
