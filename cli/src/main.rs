//! The selfpage command.
fn main() {}
