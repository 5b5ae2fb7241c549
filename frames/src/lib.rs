//! Contracts for frames, RamTab, frame stack, revocation.
