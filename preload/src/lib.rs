//! libselfpage_preload.so: gives an unmodified program its pager.
//!
//! Loaded by LD_PRELOAD into every process that `selfpage run` starts. The program's
//! heap and private anonymous mappings become stretches of its own domain, and its own
//! threads resolve its faults (paper 000, sections 5 and 6: every application deals with
//! its own faults). Nemesis's applications linked the stretch drivers; an
//! unmodified program gets them by interposition.
//!
//! - `malloc`: the C library's allocator, over mimalloc, over `map`
//! - `map`, `advise`, `brk`: the memory calls as the kernel defines them, over
//!   `space`, which keeps `mappings` and memory in step
//! - `limits`: address space and data limits that the program sets
//! - `adopt`: memory mapped before the constructor
//! - `fork`, `exec`, `pthread`, `descriptors`: other calls of a program
//!   that concern its pager
//! - `processors`: the processors that its threads run on
//! - `start`, `pager_process`, `link`: how a process joins the tree, and its pager process
//! - `traps`: faults on files, counted and paced
//! - `pager`: the library's interface to the `engine`
//!
//! Rule: the library's own data never lies in memory it pages. Its heap (`heap`) and
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
