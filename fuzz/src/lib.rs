//! A differential fuzzer of the address space.
//!
//! A *program* is a list of operations on memory, drawn from a seed. An interpreter, an
//! ordinary program in C, carries it out and logs what each operation returned and what
//! memory held: once without the pager, once under `selfpage run` with far fewer frames
//! than it touches. The kernel is the reference: a line of the log that differs is a
//! defect, and so is a run that makes no progress. What may differ by right (addresses,
//! order among threads, residency) never reaches the log, by construction of the
//! operations (`interpreter/`).
//!
//! A program that fails is shrunk to the operations that matter and written as one file
//! of C, which needs nothing of this crate.

pub mod campaign;
pub mod emit;
pub mod execution;
pub mod generate;
pub mod interpreter;
pub mod program;
pub mod random;
pub mod shrink;
mod stall;
