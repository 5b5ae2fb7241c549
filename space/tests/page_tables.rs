//! Page tables as the kernel counts them (VmPTE): several processes map 16 GiB each.
//!
//! The bound is of the lowest level, one page for each 2 MiB. The kernel frees a page of an upper
//! level only with all that it covers, and the neighbours of a hidden range stay mapped: so each
//! process has besides, for N GiB of mapped objects, a page for each GiB (and one where they do not
//! begin at a GiB), and one for each 512 GiB (and one likewise). The other pages of the constant are
//! the space's: one for the 2 MiB in which copies are made ready; under a budget one each for its
//! counts, for the stack of the space's thread and for that thread's heap, and two above the counts,
//! which are far from other memory.

mod common;

use common::{TABLE, alone, bytes_mut, fork, read_write, status_kb, wait};
use space::{AddressSpace, MemoryObject, VtlbBound, VtlbBudget};
use std::io::{Read, Write};

const GIB: usize = 1 << 30;
const SIZE: usize = 16 * GIB;
const PROCESSES: usize = 4;
const BOUND: u64 = 64;
/// Pages of upper levels for 16 GiB, and pages of the space's own.
const CONSTANT: u64 = (16 + 1) + (1 + 1) + 6;
const PAGE_KB: u64 = 4;

/// A process that maps the object and touches each 2 MiB of it when it is told.
struct Process {
    pid: i32,
    steps: std::io::PipeWriter,
    done: std::io::PipeReader,
}

impl Process {
    fn start(object: &MemoryObject, bound: VtlbBound) -> Self {
        let (mut told, steps) = std::io::pipe().unwrap();
        let (done, mut tell) = std::io::pipe().unwrap();
        let pid = fork(|| {
            let mut wait = || told.read_exact(&mut [0]).unwrap();
            wait();
            let space = AddressSpace::without_domain(bound).unwrap();
            let at = space.map(None, SIZE, object, 0, read_write()).unwrap();
            for range in 0..SIZE / TABLE {
                // SAFETY: mapped; the processes write the same byte.
                unsafe { bytes_mut(at + range * TABLE, 1) }.fill(1);
            }
            assert_eq!(space.vtlb_stats().misses, (SIZE / TABLE) as u64);
            tell.write_all(&[0]).unwrap();
            wait();
            0
        });
        Self { pid, steps, done }
    }

    fn next(&mut self) {
        self.steps.write_all(&[0]).unwrap();
    }

    fn page_tables(&self) -> u64 {
        status_kb(self.pid, "VmPTE:") / PAGE_KB
    }
}

/// Pages of page tables that each process has more, once all have touched everything.
fn grown(bound: impl Fn() -> VtlbBound) -> Vec<u64> {
    let object = MemoryObject::create(SIZE as u64).unwrap();
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start(&object, bound()))
        .collect();
    let before: Vec<_> = processes.iter().map(Process::page_tables).collect();
    processes.iter_mut().for_each(Process::next);
    for process in &mut processes {
        process.done.read_exact(&mut [0]).unwrap();
    }
    let after: Vec<_> = processes.iter().map(Process::page_tables).collect();
    for process in &mut processes {
        process.next();
        assert_eq!(wait(process.pid), Ok(0));
    }
    after.iter().zip(before).map(|(a, b)| a - b).collect()
}

#[test]
fn each_process_stays_within_its_bound_and_a_constant() {
    let _alone = alone();
    let grown = grown(|| (BOUND as usize).into());
    println!("{grown:?} pages");
    for pages in grown {
        assert!(pages <= BOUND + CONSTANT, "{pages} pages of page tables");
    }
}

#[test]
fn processes_with_one_budget_stay_within_it_and_a_constant_each() {
    let _alone = alone();
    let budget = VtlbBudget::create(BOUND as usize, PROCESSES).unwrap();
    let grown = grown(|| (&budget).into());
    println!("{grown:?} pages");
    let (pages, constants) = (grown.iter().sum::<u64>(), PROCESSES as u64 * CONSTANT);
    assert!(pages <= BOUND + constants, "{pages} pages of page tables");
}
