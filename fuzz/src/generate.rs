//! Draws programs from seeds.
//!
//! Each program uses some kinds of operations often, some seldom and some not at all:
//! a program of few kinds comes deeper into them than one of all kinds alike.

mod arguments;

use crate::program::{BLOCKS, Operation, Program};
use crate::random::Random;
use arguments::Argument::{self, *};

/// A kind of operation, how often it is drawn in a program that leaves it so, and its arguments.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    weight: i64,
    arguments: &'static [Argument],
}

/// Kinds by lines of a table: name, weight, arguments. Those of [`BLOCKS`] and `heap` draw their own.
macro_rules! kinds {
    ($($name:ident $weight:literal ($($argument:expr),*);)*) => {
        [$(Kind { name: stringify!($name), weight: $weight, arguments: &[$($argument),*] }),*]
    };
}

const KINDS: [Kind; 49] = kinds! {
    map 6 (Between(1, 7), Pages, Access, Memory, Flags(55), Between(0, 63));
    map_fixed 8 (Region, Page, Pages, Access, Memory, Flags(63), Between(0, 63));
    map_hint 2 (Page, Pages, Access, Memory);
    unmap 4 (Region, Page, Pages);
    unmap_region 1 (Unmapped);
    cut 1 (Region, Page);
    move_fixed 4 (Region, Page, Pages, OtherRegion, OtherPage, OtherPages, Between(0, 1));
    resize 3 (Page, Pages, OtherPages);
    resize_region 3 (Region, OtherPages);
    remap_pages 2 (Region, Page, Pages, OtherPage);
    protect 4 (Region, Page, Pages, Access);
    advise 5 (Region, Page, Pages, Advice);
    lock 2 (Region, Page, Pages, Between(0, 2));
    lock_all 1 (Of(&LOCK_ALL));
    resident 1 (Region, Page, Pages, SeldomOne);
    listed 2 (Region, Page, Pages, Between(0, 1));
    guard 2 (Region, Page, Pages);
    protect_by_key 1 (Region, Page, Pages, Between(0, 1));
    sync_pages 1 (Region, Page, Pages, Between(0, 7));
    stamp 12 (Region, Page, Pages, Seed);
    poke 6 (Region, Page, Pages, Between(0, 6), Seed);
    sum 8 (Region, Page, Pages);
    copy 4 (Region, Page, Pages, OtherRegion, OtherPage);
    churn 5 (MoreThanFrames);
    duplicate 1 (Region, Page, Pages, Between(1, 7));
    advise_process 2 (Region, Page, Pages, Of(&PROCESS_ADVICE));
    label 2 (Region, Page, Pages, Between(0, 1));
    resize_file 1 (Between(0, 3), Between(0, 64));
    file_io 5 (Region, Page, Pages, Between(0, 3), Between(0, 63), Between(0, 7));
    pipe_io 4 (Region, Page, Pages, OtherRegion, OtherPage, Between(0, 4));
    child_memory 3 (Region, Page, Pages, OtherRegion, OtherPage, Between(0, 1));
    trace_child 2 (Region, Page, Between(0, 1));
    ring_io 3 (Region, Page, Pages, Between(0, 55), Between(0, 7));
    futex_word 1 (Region, Page);
    map_segment 2 (Page, Pages, Seed, Zero);
    own_faults 1 (Pages, Seed);
    heap 10 ();
    heap_check 2 ();
    program_break 2 (Pages, Seed);
    barrier 3 (Region, Page, Pages, Seed, Between(0, 1));
    robust_mutex 2 (Region, Page, Between(0, 3));
    stir 3 (Between(0, 6));
    fork_child 3 ();
    fork_beside 2 ();
    exec_child 2 ();
    sharing_child 2 ();
    in_handler 2 ();
    at_depth 2 ();
    thread 2 ();
};

/// What is drawn where every kind is left out.
const SUM_ALL: Kind = Kind {
    name: "sum_all",
    weight: 0,
    arguments: &[],
};

/// What a child that shares its parent's memory is given to do: nothing that makes
/// processes or threads, which the C library does not define there.
const SHARING: [&str; 10] = [
    "map",
    "map_fixed",
    "unmap",
    "move_fixed",
    "protect",
    "advise",
    "stamp",
    "poke",
    "sum",
    "churn",
];

/// Kinds that have the kernel look for pages in the page table first. It takes a page that
/// may only be written if it finds it there, and refuses it with EFAULT if it has to
/// bring it in. So their result depends on what is resident.
const TAKING: [&str; 3] = ["file_io", "pipe_io", "ring_io"];

/// Advice with a defined effect. Not among it: MADV_HWPOISON and the like, and guards, which
/// the pager answers as a kernel that does not know them (`guard` draws those).
const ADVICE: [i64; 20] = [
    0, 1, 2, 3, 4, 4, 4, 4, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21,
];
const MORE_ADVICE: [i64; 6] = [22, 23, 24, 5, 7, 99];

/// Advice of `process_madvise`.
const PROCESS_ADVICE: [i64; 7] = [4, 3, 20, 21, 0, 18, 14];

/// The last only where no kind of [`TAKING`] is drawn.
const ACCESS: [i64; 8] = [3, 3, 3, 3, 1, 0, 7, 2];

/// Flags of `mlockall`: none, all that do not bring pages in, and unknown ones.
const LOCK_ALL: [i64; 7] = [0, 2, 4, 5, 6, 7, 8];

/// The program of a seed.
pub fn program(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let mut weights = KINDS.map(|kind| kind.weight);
    for weight in &mut weights {
        *weight = match random.between(0, 9) {
            0..=1 => 0,
            2 => *weight * 4,
            _ => *weight,
        };
    }
    let write_only = random.one_in(4);
    for (kind, weight) in KINDS.iter().zip(&mut weights) {
        if write_only && TAKING.contains(&kind.name) {
            *weight = 0;
        }
    }
    let access = match write_only {
        true => &ACCESS[..],
        false => &ACCESS[..ACCESS.len() - 1],
    };
    let mut drawing = Drawing {
        random,
        weights,
        access,
    };
    let random = &mut drawing.random;
    let frames = random.of(&[4, 4, 4, 6, 8, 16]);
    let store = random.of(&["ram:128M", "ram:128M", "ram:1M+disk:swap,size=128M"]);
    let length = random.between(10, 90) as usize;
    let mut operations = Vec::new();
    if !random.one_in(3) {
        let threads = random.between(1, 2);
        operations.push(Operation::plain("pressure", &[threads, frames * 2]));
    }
    if random.one_in(2) {
        // Whatever is churned later, it is more than the frames.
        operations.push(Operation::plain("churn", &[frames + frames / 2]));
    }
    operations.push(Operation::plain(
        "map",
        &[1, random.between(1, 600), 3, 0, 0, 0],
    ));
    operations.extend(drawing.operations(length, frames, 0));
    operations.push(Operation::plain("sum_all", &[]));
    Program {
        frames: format!("{frames}M"),
        store: store.into(),
        operations,
    }
}

struct Drawing {
    random: Random,
    /// Of each kind.
    weights: [i64; KINDS.len()],
    access: &'static [i64],
}

impl Drawing {
    fn operations(&mut self, length: usize, frames: i64, depth: u32) -> Vec<Operation> {
        let all: i64 = self.weights.iter().sum();
        let mut operations = Vec::new();
        for _ in 0..length {
            let mut place = self.random.between(0, all.max(1) - 1);
            let drawn = KINDS.iter().zip(&self.weights).find(|(_, weight)| {
                place -= *weight;
                place < 0
            });
            let kind = drawn.map_or(&SUM_ALL, |(kind, _)| kind);
            if BLOCKS.contains(&kind.name) {
                if depth >= 3 {
                    continue;
                }
                let how = match kind.name {
                    "fork_beside" => frames + frames / 2,
                    "fork_child" => self.random.between(0, 4),
                    "exec_child" => self.random.between(0, 2),
                    "at_depth" => self.random.between(0, 8191),
                    _ => self.random.between(0, 1),
                };
                let inside = self.random.between(1, 12) as usize;
                let mut block = self.operations(inside, frames, depth + 1);
                if kind.name == "sharing_child" {
                    block.retain(|o| SHARING.contains(&o.name.as_str()));
                }
                if self.random.one_in(2) {
                    block.push(Operation::plain("sum_all", &[]));
                }
                operations.push(Operation {
                    name: kind.name.into(),
                    arguments: vec![how],
                    block: Some(block),
                });
                continue;
            }
            let arguments = self.arguments(kind, frames);
            operations.push(Operation::plain(kind.name, &arguments));
        }
        operations
    }

    /// A region: often 0 or 1, so that operations meet.
    fn region(&mut self) -> i64 {
        match self.random.between(0, 9) {
            0..=3 => 0,
            4..=6 => 1,
            _ => self.random.between(2, 7),
        }
    }

    /// Where in a region: round numbers more often than not, so that edges meet.
    fn page(&mut self) -> i64 {
        match self.random.between(0, 5) {
            0 => 0,
            1..=2 => 16 * self.random.between(0, 20),
            3..=4 => self.random.between(0, 200),
            _ => self.random.between(0, 2047),
        }
    }

    fn pages(&mut self) -> i64 {
        match self.random.between(0, 7) {
            0 => 1,
            1 => 2,
            2 => 16,
            3..=5 => self.random.between(1, 64),
            6 => self.random.between(1, 300),
            _ => self.random.between(1, 2048),
        }
    }

    /// What is mapped: half of it is private and anonymous.
    fn memory(&mut self) -> i64 {
        match self.random.one_in(2) {
            true => 0,
            false => self.random.between(0, 9),
        }
    }

    fn flags(&mut self) -> i64 {
        match self.random.between(0, 3) {
            0 => 1 << self.random.between(0, 5),
            1 => self.random.between(0, 63) & !4,
            _ => 0,
        }
    }

    fn seed(&mut self) -> i64 {
        self.random.between(0, 9999)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_knows_every_operation_with_so_many_arguments() {
        fn check(operations: &[Operation]) {
            for operation in operations {
                let count = operation.arguments.len();
                let entry = format!("({}, {count})", operation.name);
                let table = include_str!("../interpreter/operations.h");
                assert!(table.contains(&entry), "operations.h lacks {entry}");
                check(operation.block.as_deref().unwrap_or_default());
            }
        }
        for seed in 0..200 {
            check(&program(seed).operations);
        }
    }

    #[test]
    fn a_seed_gives_the_same_program() {
        assert_eq!(program(3), program(3));
        assert_ne!(program(3), program(4));
    }
}
