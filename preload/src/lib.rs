//! libselfpage_preload.so: gives an unmodified program its pager.
//!
//! Loaded by LD_PRELOAD into every process that `selfpage run` starts. The program's
//! heap and private anonymous mappings become stretches of its own domain, and its own
//! threads resolve its faults (paper 000, sections 5 and 6: every application deals with
//! its own faults). What Nemesis's applications did by linking the stretch drivers, an
//! unmodified program gets by interposition.
//!
//! - `malloc`: the C library's allocator, over mimalloc, over `map`
//! - `map`, `advise`, `brk`: the memory calls as the kernel defines them, over
//!   `space`, which keeps `mappings` and memory in step
//! - `limits`: what the program may map, as it set it
//! - `adopt`: what was mapped before we came
//! - `fork`, `exec`, `pthread`, `descriptors`: what else a program does
//!   that a pager must know
//! - `processors`: where its threads run
//! - `start`, `pager_process`, `link`: how a process comes in and what runs in it
//! - `traps`: faults on files, counted and paced
//! - `pager`: all that is asked of the `engine`
//!
//! Rule: nothing of the library's own lies in memory it pages. Its heap (`heap`) and
//! tables are raw mappings; it never calls the program's `malloc` or `mmap`.

// The exported functions are left out of the test program, which must keep its own.
#![cfg_attr(test, allow(dead_code))]

mod adopt;
mod advise;
mod allocated;
mod bootstrap;
mod brk;
mod descriptors;
mod engine;
mod exec;
mod fork;
mod heap;
mod interpose;
mod limits;
mod link;
mod malloc;
mod map;
mod mappings;
mod next;
mod notice;
mod outlet;
mod pager;
mod pager_process;
mod processors;
mod pthread;
mod raw;
mod space;
mod start;
mod syscall;
mod traps;
