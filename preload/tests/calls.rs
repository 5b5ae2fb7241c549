//! The memory calls, emulated, against the kernel's own.

mod common;

use common::{compile, plain, printed};
use std::process::Command;

/// Sequences of calls compared; each is drawn from its number.
const SEEDS: u64 = 60;

#[test]
fn random_memory_calls_look_the_same_as_the_kernels_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("calls", folder.path());
    for seed in 1..=SEEDS {
        let seed = seed.to_string();
        let kernel = printed(Command::new(&program).arg(&seed));
        let emulated = printed(plain(&program).arg(&seed));
        let differs = kernel
            .lines()
            .zip(emulated.lines())
            .position(|(a, b)| a != b);
        if let Some(line) = differs {
            let from = line.saturating_sub(3);
            let part = |text: &str| {
                text.lines()
                    .skip(from)
                    .take(line - from + 1)
                    .collect::<Vec<_>>()
                    .join("\n")
            };
            panic!(
                "seed {seed}, line {line}, the kernel:\n{}\nemulated:\n{}",
                part(&kernel),
                part(&emulated)
            );
        }
        assert_eq!(kernel.lines().count(), emulated.lines().count());
    }
}
