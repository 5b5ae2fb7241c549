//! Compressed RAM in frames of the contract: contents, revocation, and the end of any process.

use super::{Case, FRAMES, field, wait_until};
use e2e::contract::{Contract, MIB, Size, Under};
use e2e::daemon::Settings;
use e2e::outcome::number;
use e2e::verdict::{Doing, Verdict, ensure};
use e2e::{Daemon, Disks, Launch, Sandbox};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    pages_compressed_in_frames_of_the_contract_are_right_and_within_it => within,
    an_idle_ones_compressed_pages_are_given_back_in_time_and_are_right => revoked,
    children_killed_while_pages_are_demoted_and_a_daemon_killed_twice_lose_no_page => killed,
    without_compressed_ram_pages_go_to_the_disk => without,
    frames_without_a_daemon_have_compressed_ram_and_killed_children_lose_no_page => without_daemon,
    compressed_ram_in_frames_is_refused_where_the_store_does_not_fit_it => unfit_store,
];

/// Fills memory with pages that compress to about a third, and checks and changes them in random
/// order; sleeps; forks children that do the same and are killed; and checks all at the end.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static uint64_t state = 88172645463325252u;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
static unsigned *version;
static char *memory;
static size_t pages;
static void fill(uint64_t *page, size_t number, unsigned times) {
    uint64_t x = number * 0x9e3779b97f4a7c15u + times + 1;
    memset(page, 0, 4096);
    for (int i = 0; i < 160; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; page[i] = x; }
}
static void check(size_t number) {
    static uint64_t expected[512];
    fill(expected, number, version[number]);
    if (memcmp(memory + number * 4096, expected, 4096)) { printf("page %zu is wrong\n", number); exit(3); }
}
static void work(long rounds) {
    for (long i = 0; rounds < 0 || i < rounds; i++) {
        size_t number = next() % pages;
        check(number);
        if (next() % 2) fill((uint64_t *)(memory + number * 4096), number, ++version[number]);
    }
}
int main(int argc, char **argv) {
    pages = atol(argv[1]) * 256;
    memory = aligned_alloc(4096, pages * 4096);
    version = calloc(pages, sizeof *version);
    for (size_t i = 0; i < pages; i++) fill((uint64_t *)(memory + i * 4096), i, 0);
    work(pages * 6);
    if (argc > 3) fclose(fopen(argv[3], "w"));
    sleep(atoi(argv[2]));
    for (int child = 0; argc > 4 && child < 16; child++) {
        pid_t pid = fork();
        if (pid == 0) work(-1);
        usleep(20000 + next() % 60000);
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        if (!WIFSIGNALED(status)) { printf("a child ended with %d\n", status); return 3; }
        work(500);
    }
    for (size_t i = 0; i < pages; i++) check(i);
    puts("every page is right");
    return 0;
}
"#;

fn build(sandbox: &Sandbox) -> Verdict<PathBuf> {
    let (source, program) = (sandbox.join("pages.c"), sandbox.join("pages"));
    std::fs::write(&source, PROGRAM).doing(|| "write a program".into())?;
    let done = Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .status();
    ensure(done.doing(|| "run cc".into())?.success(), || {
        "cc failed".into()
    })?;
    Ok(program)
}

fn within(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("within")?;
    let launch = Launch::new(&sandbox, build(&sandbox)?)
        .args(["64", "0"])
        .limit(Duration::from_secs(100));
    let contract = daemon.terms(32, 128).with("--disk=100ms/250ms,extra");
    let contract = contract.with("--ram=16M");
    let outcome = launch.run(&Under::Contract(contract))?;
    let outcome = outcome.succeeded()?.within_contract()?;
    let stats = outcome.stats.as_ref().unwrap_or(&serde_json::Value::Null);
    let stored = number(stats, "/store_usage/to_ram")?;
    ensure(stored > 1000, || format!("{stored} pages were compressed"))?;
    // Frames of compressed RAM are among them.
    let (frames, ram) = (
        number(stats, "/frames_peak_bytes")?,
        number(stats, "/store_usage/ram_limit")?,
    );
    ensure(frames <= 32 * MIB && ram <= 16 * MIB, || {
        format!("{frames} bytes of frames, {ram} of compressed RAM at most")
    })?;
    daemon.has_everything_back()
}

fn without(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("without")?;
    let launch = Launch::new(&sandbox, build(&sandbox)?)
        .args(["48", "0"])
        .limit(Duration::from_secs(100));
    let contract = daemon.terms(24, 128).with("--disk=100ms/250ms,extra");
    let contract = contract.with("--ram=0");
    let outcome = launch.run(&Under::Contract(contract))?;
    let outcome = outcome.succeeded()?;
    let stats = outcome.stats.as_ref().unwrap_or(&serde_json::Value::Null);
    let stored = number(stats, "/store_usage/to_ram")?;
    ensure(stored == 0, || format!("{stored} pages were compressed"))?;
    daemon.has_everything_back()
}

fn revoked(disks: &Arc<Disks>, _: Size) -> Verdict {
    let daemon = Daemon::start(disks, &Settings::new(72))?;
    let (held, needy) = (Sandbox::new("idle")?, Sandbox::new("needy")?);
    let ready = held.join("ready");
    let launch = Launch::new(&held, build(&held)?)
        .args(["128", "8"])
        .arg(&ready)
        .limit(Duration::from_secs(200));
    let contract = daemon.terms(8, 144).lending(64 * MIB).with("--ram=36M");
    let idle = launch.spawn(&Under::Contract(contract.with("--disk=50ms/250ms,extra")))?;
    wait_until("it sleeps", || Ok(ready.exists()))?;
    let owned = field(&daemon, 1, "owned")?;
    ensure(owned > Some(48 * FRAMES), || {
        format!("it owns {owned:?} frames")
    })?;
    let grower = Launch::new(&needy, build(&needy)?)
        .args(["60", "0"])
        .limit(Duration::from_secs(100));
    let contract = daemon.terms(56, 80).with("--disk=50ms/250ms,extra");
    grower.run(&Under::Contract(contract))?.succeeded()?;
    ensure(!daemon.log().contains("is killed"), || daemon.said())?;
    idle.wait()?.succeeded()?;
    daemon.has_everything_back()
}

fn killed(disks: &Arc<Disks>, _: Size) -> Verdict {
    let mut daemon = Daemon::start(disks, &Settings::new(64))?;
    let sandbox = Sandbox::new("killed")?;
    let ready = sandbox.join("ready");
    let launch = Launch::new(&sandbox, build(&sandbox)?)
        .args(["48", "0"])
        .arg(&ready)
        .arg("children")
        .limit(Duration::from_secs(200));
    let contract = daemon.terms(24, 192).with("--disk=100ms/250ms,extra");
    let contract = contract.with("--ram=12M");
    let running = launch.spawn(&Under::Contract(contract))?;
    wait_until("children start", || Ok(ready.exists()))?;
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(300));
        daemon.kill()?;
        daemon.again()?;
    }
    running.wait()?.succeeded()?;
    daemon.has_everything_back()
}

fn without_daemon(_: &Arc<Disks>, _: Size) -> Verdict {
    let sandbox = Sandbox::new("ram_of_frames")?;
    let launch = Launch::new(&sandbox, build(&sandbox)?)
        .args(["48", "0"])
        .arg(sandbox.join("ready"))
        .arg("children")
        .limit(Duration::from_secs(200));
    let contract = Contract::new(24 * MIB).over(0, 192 * MIB).with("--ram=12M");
    let outcome = launch.run(&Under::Contract(contract))?;
    let outcome = outcome.succeeded()?.within_contract()?;
    let stats = outcome.stats.as_ref().unwrap_or(&serde_json::Value::Null);
    let stored = number(stats, "/store_usage/to_ram")?;
    let frames = number(stats, "/frames_peak_bytes")?;
    ensure(stored > 1000 && frames <= 24 * MIB, || {
        format!("{stored} pages were compressed, and {frames} bytes of frames held")
    })?;
    sandbox.check_clean()
}

fn unfit_store(_: &Arc<Disks>, _: Size) -> Verdict {
    let sandbox = Sandbox::new("unfit_store")?;
    let launch = Launch::new(&sandbox, "/bin/true");
    for disk in [64 * MIB, 0] {
        let contract = Contract::new(8 * MIB).over(16 * MIB, disk).with("--ram=4M");
        let outcome = launch.run(&Under::Contract(contract))?.ended_with(125)?;
        outcome.mentions("of its own")?;
    }
    sandbox.check_clean()
}
