//! Programs that check what the library does for them, each without the library, and
//! with it.

mod common;

use common::{compile, plain, printed};
use std::process::Command;

fn bare_and_plain(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(name, folder.path());
    printed(&mut Command::new(&program));
    printed(&mut plain(&program));
}

#[test]
fn the_allocator_keeps_the_contract_of_c() {
    bare_and_plain("heap");
}

#[test]
fn mappings_land_where_they_may() {
    bare_and_plain("places");
}

#[test]
fn every_way_to_fork_gives_the_child_its_memory() {
    bare_and_plain("forks");
}

#[test]
fn every_way_to_start_a_program_brings_the_library_along() {
    let folder = tempfile::tempdir().unwrap();
    printed(&mut plain(&compile("execs", folder.path())));
}

#[test]
fn threads_end_by_every_way_out() {
    bare_and_plain("threads");
}

#[test]
fn the_programs_descriptors_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("descriptors", folder.path());
    assert_eq!(
        printed(&mut Command::new(&program)),
        printed(&mut plain(&program))
    );
}

#[test]
fn a_static_program_is_refused_and_the_caller_told() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("s.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let program = folder.path().join("s");
    let linked = Command::new("cc")
        .arg("-static")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    if !linked.is_ok_and(|status| status.success()) {
        eprintln!("skipped: the C library's static archive is not installed");
        return;
    }
    let shell = std::path::Path::new("/bin/bash");
    let output = plain(shell).arg("-c").arg(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(String::from_utf8_lossy(&output.stderr).contains("statically linked"));
}

#[test]
fn without_a_system_domain_the_library_stands_aside() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("places", folder.path());
    printed(Command::new(&program).env("LD_PRELOAD", common::library()));
}
