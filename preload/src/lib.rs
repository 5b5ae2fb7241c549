//! libselfpage_preload.so: gives an unmodified program its pager.
//!
//! Loaded by LD_PRELOAD into every process that `selfpage run` starts. The program's
//! heap and private anonymous mappings become stretches of its own domain, and its own
//! threads resolve its faults (paper 000, sections 5 and 6: every application deals with
//! its own faults). Nemesis's applications linked the stretch drivers; an
//! unmodified program gets them by interposition.
//!
//! - `malloc`: the C library's allocator, over mimalloc, over `map`
//! - `map`, `mremap`, `remap_file_pages`, `madvise`, `mlock`, `brk`: the memory calls as the kernel
//!   defines them, over `address_space`, which keeps `vma_map` and memory in step
//! - `sysv_shm`: segments at addresses of an arena
//! - `limits`: address space and data limits that the program sets
//! - `adopt`: memory mapped before the constructor
//! - `fork`, `exec`, `pthread`, `fd_guard`: other calls of a program that concern its pager
//! - `dlopen`: libraries that the program loads
//! - `rseq`: the processors that its threads run on
//! - `init`, `pager_process`, `supervisor`: how a process joins the tree, and its pager process
//! - `process_pager`: the pager of this process; `paged_memory`: its operations on memory
//!
//! Rule: the library's own data never lies in memory it pages. Its heap (`heap`) and
//! tables are raw mappings; it never calls the program's `malloc` or `mmap`.

// The exported functions are left out of the test program, which must keep its own.
#![cfg_attr(test, allow(dead_code))]

mod address_space;
mod adopt;
mod brk;
mod cancellation;
mod diagnostics;
mod dlopen;
mod dlsym;
mod early_alloc;
mod exec;
mod fd_guard;
mod filters;
mod fork;
mod futex;
mod handle_lookup;
mod heap;
mod init;
mod interpose;
mod library_data;
mod limits;
mod madvise;
mod malloc;
mod map;
mod mapped_bitmap;
mod maps_file;
mod mlock;
mod mremap;
mod mseal;
mod mutexes;
mod paged_memory;
mod pager_process;
mod process_pager;
mod process_vm;
mod pthread;
mod raw_syscall;
mod remap_file_pages;
mod rseq;
mod shared_memory;
mod supervisor;
mod syscall;
mod sysv_shm;
mod trace;
mod vma_map;
mod wait;
