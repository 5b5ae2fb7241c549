//! `selfpage vm serve`: two processes, and what systemd has of those before.

use crate::machine::{Memory, StateFolder};
use crate::serve::{block_signals, wait_for};
use disk::atropos::DiskContract;
use host::restart_policy::RestartPolicy;
use host::systemd;
use manager::client_memory::SharedCache;
use manager::control::control_path;
use manager::former_service::FormerService;
use manager::keeper::{Inheritance, KeeperEnd, keep};
use manager::kept_service::describe;
use manager::server::{Manager, ManagerConfig, ManagerError};
use manager::snapshot::{Snapshot, SnapshotSource};
use manager::sockets::remove_socket;
use protocol::contract_spec::DiskSpec;
use rustix::io::Errno;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{SharedStore, StoreConfig};
use wired::{Bytes, PAGE};

/// How long lines of the log are waited for at the end.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// How long a peer may take for its hand-off.
const PATIENCE: Duration = Duration::from_secs(10);
/// Fewest frames of a contract: two units of pages, and what holds them while they are evicted.
const FEWEST_FRAMES: u64 = 1 << 20;

/// Answer the page faults of guests.
///
/// A VMM connects to the socket and sends a JSON array of its mappings (base_host_virt_addr, size, offset,
/// page_size) and its userfaultfd, as Firecracker does; a memfd as the second descriptor makes the guest's
/// memory evictable. A manager that is killed is followed by another one, and guests lose nothing; the first process, its
/// keeper, starts it. SIGTERM ends the service; guests that run then wait for ever at their next fault, unless systemd has a
/// descriptor store for it: then they wait until it is started again.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Where VMMs connect. Beside it, with .control appended, is the socket of `vm show` and `vm save`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    /// The snapshot of the guest's memory: a file, or opendal:URL of an object in S3, Redis or a folder, of which parts are
    /// fetched as guests need them
    #[arg(long, value_name = "FILE", required_unless_present = "empty")]
    snapshot: Option<SnapshotSource>,

    /// The folder for what was fetched of an object, a file without a name and of its size. By default one for state, as for the
    /// store of `run`
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "snapshot",
        conflicts_with = "empty"
    )]
    snapshot_folder: Option<PathBuf>,

    /// A file of `vm save`, over the snapshot; given several times, the oldest first
    #[arg(
        long,
        value_name = "FILE",
        requires = "snapshot",
        conflicts_with = "empty"
    )]
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
    #[arg(
        long,
        value_name = "PATH",
        requires = "snapshot",
        conflicts_with = "empty"
    )]
    shared_cache: Option<PathBuf>,

    /// Neither record the pages that the first guest uses nor bring them in for the next
    #[arg(long)]
    no_working_set: bool,

    /// Guests at once, at most
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = parse_clients)]
    clients: usize,

    /// Guests of one user at once, at most, so that a user leaves places to others. By default as many as --clients
    #[arg(long, value_name = "COUNT", value_parser = parse_clients)]
    clients_of_a_user: Option<usize>,

    /// Log more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Serves until a signal ends it.
pub fn serve(args: ServeArgs) -> Result<ExitCode, Box<dyn Error>> {
    // SAFETY: systemd passed the descriptors, or they are not open, and there is one call.
    let passed = unsafe { systemd::passed() }
        .map_err(|errno| format!("LISTEN_FDS promises descriptors that are not open: {errno}"))?;
    // Before any thread, that of the log too, which inherit it.
    let signals = block_signals();
    let snapshot = match &args.snapshot {
        Some(SnapshotSource::File(path)) => Some(Snapshot::open(path, &args.differential)?),
        Some(SnapshotSource::Object(object)) => {
            let folder = snapshot_folder(args.snapshot_folder.as_deref())?;
            Some(Snapshot::of_object(object, &folder, &args.differential)?)
        }
        None => None,
    };
    let contract = match (args.frames, &args.store) {
        (Some(frames), Some(store)) => Some((check_frames(frames)?, store.clone())),
        _ => None,
    };
    if args.empty.is_some_and(|it| it.0 < PAGE as u64) {
        return Err("--empty: a guest's memory has 4KiB at least, as in --empty 512M".into());
    }
    let size = snapshot
        .as_ref()
        .map_or(args.empty.map_or(0, |it| it.0), Snapshot::len);
    let most_clients = most_clients(args.clients)?;
    let mut config = ManagerConfig {
        socket: args.socket.clone(),
        uses_working_set: snapshot.is_some() && !args.no_working_set,
        snapshot,
        size,
        contract,
        disk: args
            .disk
            .map_or_else(ManagerConfig::equal_share, DiskContract::from),
        cache: None,
        most_clients,
        most_clients_of_a_user: args.clients_of_a_user.unwrap_or(usize::MAX),
        patience: PATIENCE,
    };
    let text = describe(&config, args.shared_cache.as_deref());
    let mut former = FormerService::sort(passed, &text)?;
    // The stores of guests may have taken what another one needs.
    if !former.has_clients() {
        args.store.as_ref().map_or(Ok(()), check_store)?;
    }
    if let (Some(path), Some(snapshot)) = (&args.shared_cache, &config.snapshot) {
        let cache = match former.take_cache(snapshot)? {
            Some(cache) => cache,
            None => make_cache(path, snapshot)?,
        };
        config.cache = Some(Arc::new(cache));
    }
    wire(&config);
    serve_kept(config, former, &args, &signals)
}

/// Where what was fetched of an object is kept.
fn snapshot_folder(named: Option<&Path>) -> Result<PathBuf, String> {
    let found = || StateFolder::find().map(|folder| folder.path);
    named
        .map_or_else(found, |folder| Ok(folder.to_owned()))
        .map_err(|why| format!("no folder for the snapshot ({why}): name one by --snapshot-folder"))
}

/// Serves with a keeper.
fn serve_kept(
    config: ManagerConfig,
    former: FormerService,
    args: &ServeArgs,
    signals: &libc::sigset_t,
) -> Result<ExitCode, Box<dyn Error>> {
    let cache = config.cache.clone();
    // Otherwise the next service has the cache, and the sockets, too.
    let is_stored = former.is_stored();
    let remove_cache = || {
        if let (Some(path), Some(cache), false) = (&args.shared_cache, &cache, is_stored) {
            cache.remove(path);
        }
    };
    let service = former.into_service(&args.socket, cache.as_deref());
    let service = service.inspect_err(|_| remove_cache())?;
    let serve = |from: Inheritance| Ok(manage(config, from, signals)?);
    let end = keep(service, signals, RestartPolicy::default(), serve);
    if !is_stored {
        for path in [&args.socket, &control_path(&args.socket)] {
            remove_socket(path);
        }
    }
    remove_cache();
    match end? {
        KeeperEnd::Stopped => Ok(ExitCode::SUCCESS),
        KeeperEnd::NeverServed { last } => {
            Err(format!("the manager ended before it served ({last})").into())
        }
        KeeperEnd::GaveUp { last, clients } => Err(format!(
            "the manager ended too often, last by {last}: no other is started, and {clients} guests that still run \
             wait at their next fault {}",
            until(is_stored)
        )
        .into()),
    }
}

/// How long guests wait without a manager.
fn until(is_stored: bool) -> &'static str {
    match is_stored {
        true => "until the service is started again",
        false => "for ever",
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
    if from.former_end.is_none() && !from.clients.is_empty() {
        tracing::warn!(
            "goes on with {} guests of the service before, which systemd has kept",
            from.clients.len()
        );
    }
    let (socket, is_stored) = (config.socket.clone(), from.link.is_stored());
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
            "has ended; {left} guests that still run wait at their next fault {}",
            until(is_stored)
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

/// Returns the frames of a contract.
fn check_frames(frames: Bytes) -> Result<usize, String> {
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
    Ok(frames.0 as usize / PAGE)
}

/// Checks that a guest can have a store: that none can be made shows here, not at the first guest.
fn check_store(store: &StoreConfig) -> Result<(), String> {
    if store.is_remote() || store.object_store().is_some() {
        return Err(
            "--store remote: or opendal: is not served here; use ram: and disk:".to_owned(),
        );
    }
    let created = SharedStore::create(store, 1);
    created
        .map(drop)
        .map_err(|why| format!("--store {store}: {why}"))
}

fn parse_clients(count: &str) -> Result<usize, String> {
    let count = count.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "expected a number of guests, 1 or more".to_owned())
}
