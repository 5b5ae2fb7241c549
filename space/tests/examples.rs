//! The examples, run small: what they do holds, whatever time it takes.

use std::path::PathBuf;
use std::process::Command;

/// The example's output. None where it was not built, as `cargo test --test` does not.
fn run(name: &str, arguments: &[&str]) -> Option<String> {
    let mut path = PathBuf::from(std::env::current_exe().unwrap().parent()?.parent()?);
    path.extend(["examples", name]);
    if !path.exists() {
        println!(
            "SKIPPED: {} is not built; `cargo test -p space` builds it",
            path.display()
        );
        return None;
    }
    let output = Command::new(path).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{name}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(text)
}

/// The words of the line that begins so.
fn words<'a>(text: &'a str, begins: &str) -> Vec<&'a str> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(begins));
    line.unwrap_or_else(|| panic!("no line begins with {begins}: {text}"))
        .split_whitespace()
        .collect()
}

#[test]
fn the_display_server_drops_the_clients_that_truncate_and_goes_on() {
    let Some(text) = run("display_server", &["24", "10"]) else {
        return;
    };
    for client in ["client 8", "client 12"] {
        let line = format!("frame 5: {client} is dropped");
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    assert!(text.contains("22 clients left"), "{text}");
    assert!(
        text.contains("whose clients truncate, was killed by SIGBUS"),
        "{text}"
    );
}

#[test]
fn the_b_tree_finds_every_key_in_a_quarter_of_its_file() {
    let Some(text) = run("btree", &["48"]) else {
        return;
    };
    assert!(words(&text, "space, a quarter mapped").len() > 6);
    assert!(words(&text, "stretch, a quarter in frames").len() > 6);
    assert!(text.contains("6 of 6 VTLB pages at most"), "{text}");
    assert!(
        text.contains("client view of a truncated file: found None"),
        "{text}"
    );
    assert!(
        text.contains("plain mmap of a truncated file: killed by SIGBUS"),
        "{text}"
    );
}

#[test]
fn zeroing_by_a_space_is_less_than_the_kernels() {
    let Some(text) = run("zeroing", &["400"]) else {
        return;
    };
    let pages = |line| {
        words(&text, line)
            .iter()
            .find_map(|word| word.parse::<u64>().ok())
            .unwrap()
    };
    assert!(pages("space  ") < pages("kernel"), "{text}");
}

#[test]
fn every_mutation_is_timed() {
    let Some(text) = run("lock_times", &["3000"]) else {
        return;
    };
    assert!(
        words(&text, "mutations")[1].parse::<u64>().unwrap() >= 3000,
        "{text}"
    );
    assert!(
        words(&text, "VTLB")[1].parse::<u64>().unwrap() > 0,
        "{text}"
    );
}

#[test]
fn figure_6_recycles_entries_where_pages_are_few_and_none_with_enough() {
    let Some(text) = run("figure_6", &["0.5"]) else {
        return;
    };
    let row = |pages: &str| -> Vec<f64> {
        let row = text
            .lines()
            .filter_map(|line| line.strip_prefix("10 "))
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|row| row.len() > 3 && row[0] == pages);
        row.unwrap_or_else(|| panic!("no row of {pages} pages: {text}"))[1..3]
            .iter()
            .map(|word| word.parse().unwrap())
            .collect()
    };
    assert!(row("64")[1] > 0.0, "{text}");
    assert_eq!(row("160")[1], 0.0, "{text}");
    assert_eq!(row("kernel"), [0.0, 0.0]);
}
