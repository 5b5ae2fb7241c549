//! `selfpage vm`: serves the memory of microVMs that are restored from a snapshot.

use crate::machine::Memory;
use crate::serve::{block_signals, wait_for};
use disk::atropos::DiskContract;
use host::restart_policy::RestartPolicy;
use manager::client_memory::SharedCache;
use manager::control::{ControlReply, ControlRequest, control_path, request};
use manager::keeper::{Inheritance, KeeperEnd, keep};
use manager::save::SaveEvent;
use manager::server::{Manager, ManagerConfig, ManagerError};
use manager::snapshot::Snapshot;
use manager::sockets::{Sockets, remove_socket};
use protocol::contract_spec::DiskSpec;
use rustix::io::Errno;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{SharedStore, StoreConfig};
use tracing::level_filters::LevelFilter;
use wired::{Bytes, PAGE};

/// How long lines of the log are waited for at the end.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// How long a peer may take for its hand-off.
const PATIENCE: Duration = Duration::from_secs(10);
/// Fewest frames of a contract: two units of pages, and what holds them while they are evicted.
const FEWEST_FRAMES: u64 = 1 << 20;

/// Serve the memory of microVMs that are restored from a snapshot, each under a contract of its own.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: VmCommand,
}

#[derive(clap::Subcommand)]
enum VmCommand {
    Serve(Box<ServeArgs>),
    Show(ShowArgs),
    Save(SaveArgs),
}

/// Answer the page faults of guests.
///
/// A VMM connects to the socket and sends a JSON array of its mappings (base_host_virt_addr, size, offset,
/// page_size) and its userfaultfd, as Firecracker does; a memfd as the second descriptor makes the guest's
/// memory evictable. A manager that is killed is followed by another one, and guests lose nothing; the first process, its
/// keeper, starts it. SIGTERM ends the service; guests that run then wait for ever at their next fault.
#[derive(clap::Args)]
struct ServeArgs {
    /// Where VMMs connect. Beside it, with .control appended, is the socket of `vm show` and `vm save`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// The snapshot of the guest's memory
    #[arg(long, value_name = "FILE", required_unless_present = "empty")]
    snapshot: Option<PathBuf>,

    /// A file of `vm save`, over the snapshot; given several times, the oldest first
    #[arg(long, value_name = "FILE", requires = "snapshot")]
    differential: Vec<PathBuf>,

    /// Memory that begins as zeros, of at most SIZE a client, instead of a snapshot
    #[arg(long, value_name = "SIZE", conflicts_with = "snapshot")]
    empty: Option<Bytes>,

    /// Frames of each guest: the limit on its resident memory. A guest that hands private memory over, which
    /// cannot be evicted from outside, is refused where it is larger
    #[arg(long, value_name = "SIZE", requires = "store")]
    frames: Option<Bytes>,

    /// Where evicted pages go: ram:SIZE, disk:PATH,size=SIZE or both joined by +, for each guest
    #[arg(long, value_name = "STORE", requires = "frames")]
    store: Option<StoreConfig>,

    /// Each guest's share of the disk's time, SLICE/PERIOD[,extra]. By default all share it equally
    #[arg(long, value_name = "SHARE", requires = "store")]
    disk: Option<DiskSpec>,

    /// A file to make in tmpfs, which VMMs map privately instead of anonymous memory: clones share the clean
    /// pages in it
    #[arg(long, value_name = "PATH", requires = "snapshot")]
    shared_cache: Option<PathBuf>,

    /// Neither record the pages that the first guest uses nor bring them in for the next
    #[arg(long)]
    no_working_set: bool,

    /// Guests at once, at most
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = parse_clients)]
    clients: usize,

    /// Log more
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// List the guests and what happened to their memory.
#[derive(clap::Args)]
struct ShowArgs {
    /// The socket of `vm serve`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Save a guest's memory while it runs, as the difference to its snapshot.
///
/// The file is sparse, of the snapshot's size: `vm serve --differential` restores it, and its data, without its holes, may be
/// copied over a copy of the snapshot. Stop the
/// guest's processors until `protected` is printed; what is saved is the memory as of then. A guest whose
/// balloon grows before the save ends makes it fail.
#[derive(clap::Args)]
struct SaveArgs {
    /// The socket of `vm serve`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// The guest's number in `vm show`
    #[arg(long, value_name = "NUMBER")]
    client: u64,

    /// The file
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// The least level of what is logged.
pub fn log_level(args: &Args) -> LevelFilter {
    match &args.command {
        VmCommand::Serve(args) if args.verbose > 0 => LevelFilter::DEBUG,
        VmCommand::Serve(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    }
}

/// Carries out `selfpage vm`.
pub fn vm(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    match args.command {
        VmCommand::Serve(args) => serve(*args),
        VmCommand::Show(args) => show(&args),
        VmCommand::Save(args) => save(&args),
    }
}

fn serve(args: ServeArgs) -> Result<ExitCode, Box<dyn Error>> {
    let contract = match (args.frames, &args.store) {
        (Some(frames), Some(store)) => Some(contract(frames, store)?),
        _ => None,
    };
    // Before any thread, that of the log too, which inherit it.
    let signals = block_signals();
    let snapshot = match &args.snapshot {
        Some(path) => Some(Snapshot::open(path, &args.differential)?),
        None => None,
    };
    if args.empty.is_some_and(|it| it.0 < PAGE as u64) {
        return Err("--empty: a guest's memory has 4KiB at least, as in --empty 512M".into());
    }
    let size = snapshot
        .as_ref()
        .map_or(args.empty.map_or(0, |it| it.0), Snapshot::len);
    let most_clients = most_clients(args.clients)?;
    let cache = match (&args.shared_cache, &snapshot) {
        (Some(path), Some(snapshot)) => Some(Arc::new(make_cache(path, snapshot)?)),
        _ => None,
    };
    let config = ManagerConfig {
        socket: args.socket.clone(),
        uses_working_set: snapshot.is_some() && !args.no_working_set,
        snapshot,
        size,
        contract,
        disk: args
            .disk
            .map_or_else(ManagerConfig::equal_share, DiskContract::from),
        cache: cache.clone(),
        most_clients,
        patience: PATIENCE,
    };
    wire(&config);
    let remove_cache = || {
        if let (Some(path), Some(cache)) = (&args.shared_cache, &cache) {
            cache.remove(path);
        }
    };
    let sockets = Sockets::listen(&args.socket).inspect_err(|_| remove_cache())?;
    let serve = |from: Inheritance| Ok(manage(config, from, &signals)?);
    let end = keep(sockets, &signals, RestartPolicy::default(), serve);
    for path in [&args.socket, &control_path(&args.socket)] {
        remove_socket(path);
    }
    remove_cache();
    match end? {
        KeeperEnd::Stopped => Ok(ExitCode::SUCCESS),
        KeeperEnd::NeverServed { last } => {
            Err(format!("the manager ended before it served ({last})").into())
        }
        KeeperEnd::GaveUp { last, clients } => Err(format!(
            "the manager ended too often, last by {last}: no other is started, and {clients} guests that still run \
             wait at their next fault for ever"
        )
        .into()),
    }
}

/// Raises the limit on descriptors, of which each guest takes some. Returns how many of the guests asked for it allows.
fn most_clients(asked: usize) -> Result<usize, String> {
    let Some(limit) = host::descriptor_limit::raise() else {
        return Ok(asked);
    };
    let most = manager::keeper::most_clients(limit);
    if most == 0 {
        return Err(format!(
            "{limit} open files are too few to serve a guest: raise `ulimit -n`"
        ));
    }
    if asked > most {
        tracing::warn!(
            "{most} guests at most: the limit on open files (`ulimit -n`) is {limit}, too few for the {asked} of --clients"
        );
    }
    Ok(asked.min(most))
}

/// Keeps this process in memory. Returns what the kernel does not permit.
fn wire(config: &ManagerConfig) -> Vec<&'static str> {
    let lacks = manager::wire_pager();
    if let Some(snapshot) = &config.snapshot {
        snapshot.leave_pageable();
    }
    lacks
}

/// The manager's process: serves until a signal.
fn manage(
    config: ManagerConfig,
    from: Inheritance,
    signals: &libc::sigset_t,
) -> Result<(), ManagerError> {
    let _log = logging::LineQueue::start(LOG_PATIENCE);
    let lacks = wire(&config);
    let size = match &config.snapshot {
        Some(snapshot) => snapshot.len(),
        None => config.size,
    };
    match &from.former_end {
        Some(end) => tracing::warn!(
            "the manager was ended ({end}): another one goes on with {} guests",
            from.clients.len()
        ),
        None => lacks.iter().for_each(|lack| {
            tracing::warn!(
                "the kernel does not keep the manager running under memory pressure: {lack}"
            );
        }),
    }
    let socket = config.socket.clone();
    let server = Manager::resume(config, from)?;
    tracing::info!(
        "serves guests of up to {} at {}",
        Bytes(size),
        socket.display()
    );
    wait_for(signals);
    match server.stop() {
        0 => tracing::info!("has ended"),
        left => tracing::warn!(
            "has ended; {left} guests that still run wait at their next fault for ever"
        ),
    }
    Ok(())
}

fn make_cache(path: &Path, snapshot: &Snapshot) -> Result<SharedCache, String> {
    SharedCache::create(path, snapshot).map_err(|errno| {
        let advice = match errno {
            Errno::EXIST => "it is no cache that a manager has left; name another path",
            Errno::OPNOTSUPP => "a path in tmpfs is needed, such as in /dev/shm",
            _ => "the cache cannot be made",
        };
        format!("--shared-cache {}: {errno}; {advice}", path.display())
    })
}

fn contract(frames: Bytes, store: &StoreConfig) -> Result<(usize, StoreConfig), String> {
    if frames.0 < FEWEST_FRAMES {
        return Err(format!(
            "--frames {frames} is too few: at least {}",
            Bytes(FEWEST_FRAMES)
        ));
    }
    let most = Memory::now().most();
    if frames.0 > most {
        return Err(format!(
            "--frames {frames} is more than this machine or control group has, {}",
            Bytes(most)
        ));
    }
    if store.is_remote() || store.object_store().is_some() {
        return Err(
            "--store remote: or opendal: is not served here; use ram: and disk:".to_owned(),
        );
    }
    // Each guest gets one: that none can be made shows here, not at the first guest.
    SharedStore::create(store, 1).map_err(|why| format!("--store {store}: {why}"))?;
    Ok((frames.0 as usize / PAGE, store.clone()))
}

fn parse_clients(count: &str) -> Result<usize, String> {
    let count = count.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "expected a number of guests, 1 or more".to_owned())
}

fn unreachable(socket: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |why| {
        let socket = socket.display();
        format!(
            "no manager is reached at {socket}: {why}; start one by `selfpage vm serve --socket {socket}`"
        )
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode, Box<dyn Error>> {
    let replies =
        request(&args.socket, &ControlRequest::Show).map_err(unreachable(&args.socket))?;
    for reply in replies {
        let ControlReply::Clients(clients) = reply? else {
            continue;
        };
        if args.json {
            println!("{}", serde_json::to_string_pretty(&clients)?);
            continue;
        }
        if clients.is_empty() {
            println!("no guests");
        }
        for client in clients {
            println!(
                "client {}, process {}, {}",
                client.number,
                client.pid,
                Bytes(client.bytes)
            );
            for (name, value) in client.counters.iter().filter(|(_, value)| **value > 0) {
                println!("    {name} {value}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn save(args: &SaveArgs) -> Result<ExitCode, Box<dyn Error>> {
    let to = std::path::absolute(&args.to)?;
    let wanted = ControlRequest::Save {
        client: args.client,
        to,
    };
    let replies = request(&args.socket, &wanted).map_err(unreachable(&args.socket))?;
    for reply in replies {
        match reply? {
            ControlReply::Save(SaveEvent::Protected { micros }) => {
                println!("protected, in {micros} us: the guest may run");
            }
            ControlReply::Save(SaveEvent::Saved { pages, micros }) => {
                println!(
                    "saved {pages} pages to {}, {micros} us after the request",
                    args.to.display()
                );
                return Ok(ExitCode::SUCCESS);
            }
            ControlReply::Save(SaveEvent::Failed { why }) | ControlReply::Refused(why) => {
                return Err(why.into());
            }
            ControlReply::Clients(_) => {}
        }
    }
    Err("the manager ended before the save did, and there is no file; save again when `selfpage vm show` lists the guest".into())
}
