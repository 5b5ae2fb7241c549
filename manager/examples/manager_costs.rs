//! What the manager costs: the time of a fault and its memory, at rest, for each client and each GiB.
//!
//! `cargo run -p manager --example manager_costs`. The client is a child process that touches one page
//! after another, 64 MiB in all, against the first in a quarter of that.

use manager::server::{Manager, ManagerConfig};
use manager::snapshot::Snapshot;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[allow(dead_code)]
#[path = "../tests/vm/guest.rs"]
mod guest;

use guest::{Kind, Memory, PAGE};

const PAGES: usize = 16_384;
const CLIENTS: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("touch") => touch(&args[2..]),
        Some("guest") => guest::main(&args[2..]),
        _ => measure(),
    }
}

/// The client: prints the microseconds a page of each pass.
fn touch(args: &[String]) {
    let kind = match args[0].split_once(':') {
        Some((_, path)) => Kind::Cache(path.to_owned()),
        None if args[0] == "memfd" => Kind::Memfd,
        None => Kind::Private,
    };
    let memory = Memory::hand_over(&kind, &args[1], PAGES * PAGE);
    for _ in 0..2 {
        let start = Instant::now();
        for page in 0..PAGES {
            // SAFETY: within the mapping.
            unsafe {
                let at = memory.start.add(page * PAGE / 8);
                at.write_volatile(at.read_volatile() + 1);
            }
        }
        print!(
            "{:>8.1}",
            start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
        );
    }
}

fn config(folder: &Path, snapshot: &Path) -> ManagerConfig {
    ManagerConfig {
        socket: folder.join("socket"),
        snapshot: Some(Snapshot::open(snapshot, &[]).expect("the snapshot")),
        size: 0,
        contract: None,
        disk: ManagerConfig::equal_share(),
        uses_working_set: false,
        cache: None,
        most_clients: CLIENTS,
        most_clients_of_a_user: usize::MAX,
        patience: Duration::from_secs(10),
    }
}

fn measure() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = folder.path().join("snapshot");
    let mut file = std::fs::File::create(&snapshot).expect("the snapshot");
    (0..PAGES).for_each(|page| file.write_all(&guest::page_bytes(page)).expect("a page"));
    println!("us a page, first and second pass over {PAGES} pages, read and written");
    let run = |name: &str, kind: &str, change: &dyn Fn(&mut ManagerConfig)| {
        let mut config = config(folder.path(), &snapshot);
        change(&mut config);
        let manager = Manager::start(config).expect("the manager");
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["touch", kind])
            .arg(folder.path().join("socket"))
            .stderr(Stdio::inherit())
            .output()
            .expect("the client");
        println!("{name:<44} {}", String::from_utf8_lossy(&output.stdout));
        manager.stop();
    };
    let quarter = PAGES / 4;
    let disk = format!("disk:{},size=128M", folder.path().display());
    run("private memory", "private", &|_| {});
    run("memfd", "memfd", &|_| {});
    run(
        "memfd in a quarter of frames, compressed RAM",
        "memfd",
        &|config| {
            config.contract = Some((quarter, "ram:128M".parse().expect("a store")));
        },
    );
    run("memfd in a quarter of frames, disk", "memfd", &|config| {
        config.contract = Some((quarter, disk.parse().expect("a store")));
    });
    memory(folder.path(), &snapshot);
}

/// Prints what the manager's own process takes.
fn memory(folder: &Path, snapshot: &Path) {
    let rest = resident();
    let mut config = config(folder, snapshot);
    config.contract = Some((PAGES / 4, "ram:1M".parse().expect("a store")));
    let manager = Manager::start(config).expect("the manager");
    let mut guests: Vec<_> = (0..CLIENTS)
        .map(|_| start(&folder.join("socket")))
        .collect();
    while manager.clients().len() < CLIENTS {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(500));
    let clients = resident() - rest;
    println!("anonymous memory at rest                     {rest} kB");
    println!(
        "for each of {CLIENTS} clients of 64 MiB              {} kB",
        clients / CLIENTS as u64
    );
    for guest in &mut guests {
        guest.kill().expect("a guest");
        guest.wait().expect("a guest");
    }
    manager.stop();
}

fn start(socket: &PathBuf) -> std::process::Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["guest", "memfd"])
        .arg(socket)
        .arg((PAGES * PAGE).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a guest");
    let mut ready = [0; 6];
    let output = child.stdout.as_mut().expect("its output");
    std::io::Read::read_exact(output, &mut ready).expect("a guest that is ready");
    child
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let field = |name| {
        let line: Option<&str> = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok())
    };
    field("RssAnon:").unwrap_or(0) + field("RssShmem:").unwrap_or(0)
}
