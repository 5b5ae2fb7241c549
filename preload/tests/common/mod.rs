//! C programs, compiled once each and run with the library preloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, built as this test run was: cargo does not build a library that can only
/// be loaded for the tests beside it.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let test = std::env::current_exe().expect("a test has a path");
        // target/PROFILE/deps/TEST
        let profile = test
            .ancestors()
            .nth(2)
            .expect("it lies in a profile's folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--package",
            "selfpage-preload",
            "--target-dir",
        ]);
        cargo.arg(profile.parent().expect("profiles lie in the target folder"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(
            status.is_ok_and(|s| s.success()),
            "the library does not build"
        );
        profile.join("libselfpage_preload.so")
    };
    BUILT.get_or_init(build).clone()
}

/// Compiles `tests/programs/NAME.c` into `folder`.
pub fn compile(name: &str, folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name);
    let program = folder.join(name);
    let status = Command::new("cc")
        .args(["-O1", "-g", "-pthread", "-Wall", "-Wno-unused-result", "-o"])
        .arg(&program)
        .arg(source.with_extension("c"))
        .status()
        .expect("these tests need a C compiler: install gcc or clang");
    assert!(status.success(), "{name}.c does not compile");
    program
}

/// `program` under the library, without an engine: its memory is emulated, not paged.
pub fn plain(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("SELFPAGE_PORT", "plain");
    command
}

/// What a command printed, after it ended well.
pub fn printed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it can be started");
    let stderr = String::from_utf8_lossy(&stderr);
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout
}
