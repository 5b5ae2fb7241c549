//! `selfpage serve`: memory of this machine for programs of others.

use crate::cluster::host_name;
use crate::machine::Memory;
use crate::remote_client::{control_port, parse_host};
use crate::run::unit_hint;
use crate::server_memory::ServerMemory;
use host::signals;
use host::wiring::wire_process;
use remote_broker::{BrokerConfig, CONTROL_OFFSET, RunningBroker, SeatConfig};
use remote_keys::{Fingerprint, Keyring, KeyringError};
use remote_policy::identity::Incarnation;
use remote_server::{DiskConfig, HostThresholds, KeyedAcceptor, Server, ServerConfig};
use remote_wire::identity::{host_id, id_of_key, own_incarnation};
use remote_wire::{Link, PORT};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use wired::{Bytes, SizeError};

/// How long lines of the log are waited for at the end.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// How often free ports are looked for.
const PORT_ATTEMPTS: u32 = 32;

/// Reads a percentage.
fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok();
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "a percentage is from 0 to 100".into())
}

/// Lend memory of this machine to programs of other machines.
///
/// A paging server keeps pages of paging objects in RAM, for clients that hold its permits. It lends what
/// this machine does not need itself, and takes it back when the machine does. SIGTERM ends it; its pages
/// end with it.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// RAM for pages, which is taken as it is used. The default is a quarter of what is available
    #[arg(long, value_name = "SIZE")]
    ram: Option<Bytes>,

    /// A file for pages: RAM is a cache of it then
    #[arg(long, value_name = "PATH,size=SIZE")]
    disk: Option<Disk>,

    /// Where to listen
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)),
        value_parser = socket_address
    )]
    listen: SocketAddr,

    /// Where the broker's messages arrive (TCP and UDP). The default is the port two above that of --listen
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    control: Option<SocketAddr>,

    /// The address at which other machines reach this one. The default is that of an interface
    #[arg(long, value_name = "ADDRESS", value_parser = advertised_address)]
    advertise: Option<IpAddr>,

    /// Other machines that lend memory: those on the same link are found without it
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',', value_parser = parse_host)]
    peers: Vec<String>,

    /// Neither look for machines on the link, nor be found by them. A server that listens at a loopback address does
    /// neither anyway
    #[arg(long)]
    no_discovery: bool,

    /// What decides which machine has the broker: `tournament`, where the machines elect it, or
    /// `etcd:HOST:PORT[,HOST:PORT...][/KEY]`, where it is the one with a lease in etcd. The same for all
    /// machines of a cluster; two clusters with one etcd need two keys
    #[arg(long, value_name = "SEAT", default_value = "tournament")]
    seat: SeatConfig,

    /// Serve any client, in the clear, and not the hosts of the cluster (`selfpage cluster`): every host that reaches
    /// the port can borrow memory, and every host on the way can read and change pages
    #[arg(long)]
    insecure: bool,

    /// Available memory that stays this machine's own. The default is a twentieth of its memory
    #[arg(long, value_name = "SIZE", value_parser = keep_free_size)]
    keep_free: Option<Bytes>,

    /// Share of time in which tasks of this machine wait for memory (`some avg10` of /proc/pressure/memory)
    /// above which, while less than four times --keep-free is available, nothing more is lent, and a part is
    /// taken back each second
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pressure: f64,

    /// Log more: each connection that is closed; twice: all there is
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Less than a MiB keeps nothing free: such a size has a unit that was left out.
fn keep_free_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|why: SizeError| why.to_string())?;
    match (1..1 << 20).contains(&size.0) {
        true => Err(format!(
            "{size} is too little to keep free: give 1M or more, or 0 for none{}",
            unit_hint(text)
        )),
        false => Ok(size),
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let fail = |_| "expected ADDRESS:PORT, as in 0.0.0.0:4763 or [::]:4763".to_owned();
    text.parse().map_err(fail)
}

fn advertised_address(text: &str) -> Result<IpAddr, String> {
    let expected = "expected an address at which other machines reach this one, as in 10.0.0.7";
    let address: IpAddr = text.parse().map_err(|_| expected.to_owned())?;
    match address.is_unspecified() || address.is_multicast() {
        true => Err(expected.to_owned()),
        false => Ok(address),
    }
}

/// The value of `--disk`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Disk(DiskConfig);

impl FromStr for Disk {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("invalid disk {text}: expected PATH,size=SIZE");
        let (path, size) = text.rsplit_once(",size=").ok_or_else(expected)?;
        if path.is_empty() {
            return Err(expected());
        }
        let size: Bytes = size
            .parse()
            .map_err(|why| format!("invalid size of {path}: {why}"))?;
        Ok(Self(DiskConfig {
            path: PathBuf::from(path),
            size: size.0,
        }))
    }
}

/// Runs the server.
pub fn serve(args: ServeArgs) -> Result<ExitCode, Box<dyn Error>> {
    let memory = ServerMemory::new(args.ram, args.keep_free, &Memory::now())?;
    // Each connection takes one, and the usual limit is of as many as the control port has.
    let _ = host::descriptor_limit::raise();
    // Before any thread, that of the log too, which inherit it.
    let signals = block_signals();
    let _log = logging::LineQueue::start(LOG_PATIENCE);
    let keyring = match args.insecure {
        true => None,
        false => Some(Arc::new(Keyring::open(&Keyring::default_folder()?)?)),
    };
    if let Some(keyring) = &keyring {
        keyring.check_not_removed()?;
    }
    let (server, broker) = start(&args, keyring.as_ref(), memory)?;
    // RAM is a cache of a disk.
    let lent = args
        .disk
        .as_ref()
        .map_or(memory.ram, |disk| Bytes(disk.0.size));
    for note in server.notes().iter().chain(&memory.note()) {
        tracing::warn!("{note}");
    }
    if let Err(why) = wire_process() {
        tracing::warn!("the kernel may page out this server's own tables: {why}");
    }
    match &keyring {
        None => tracing::info!(
            "serves {lent} at {}, in the clear to any client",
            server.address()
        ),
        Some(keyring) => announce(keyring, lent, server.address())?,
    }
    let handle = server.handle();
    std::thread::spawn(move || {
        wait_for(&signals);
        handle.stop();
    });
    server.join()?;
    drop(broker);
    if keyring.is_some_and(|keyring| keyring.has_left()) {
        return Err("this host has left its cluster: join one, and start `selfpage serve` again, which then has the new key".into());
    }
    tracing::info!("has ended");
    Ok(ExitCode::SUCCESS)
}

/// Says whom the server serves.
fn announce(keyring: &Keyring, lent: Bytes, address: SocketAddr) -> Result<(), KeyringError> {
    tracing::info!(
        "serves {lent} at {address}, to the members of its cluster (this host's key is {})",
        keyring.fingerprint().short()
    );
    if !keyring.has_others()? {
        tracing::warn!(
            "no other host is a member: `selfpage cluster invite` here prints the command with which another host joins"
        );
    }
    Ok(())
}

/// Starts the server and the broker beside it. Where any port will do it is one whose control port is free, too.
fn start(
    args: &ServeArgs,
    keyring: Option<&Arc<Keyring>>,
    memory: ServerMemory,
) -> Result<(Server, RunningBroker), Box<dyn Error>> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let listen = match args.listen.port() {
            0 => free_address(args.listen)?,
            _ => args.listen,
        };
        let is_last = args.listen.port() != 0 || attempts >= PORT_ATTEMPTS;
        match start_at(args, listen, keyring, memory) {
            Err(why) if is_last => return Err(why),
            Err(why) => tracing::debug!("{why}"),
            Ok(started) => return Ok(started),
        }
    }
}

fn free_address(any: SocketAddr) -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind(any)?.local_addr()
}

fn incarnation(args: &ServeArgs, keyring: Option<&Arc<Keyring>>) -> Incarnation {
    let key = keyring.map(|keyring| keyring.fingerprint());
    own_incarnation(id_of_key(host_id(&identity(args.listen, key)), key))
}

fn start_server(
    args: &ServeArgs,
    listen: SocketAddr,
    keyring: Option<&Arc<Keyring>>,
    memory: ServerMemory,
) -> Result<Server, Box<dyn Error>> {
    Ok(Server::start(ServerConfig {
        listen,
        server: incarnation(args, keyring),
        name: host_name(),
        ram: memory.ram.0,
        disk: args.disk.clone().map(|disk| disk.0),
        capacity: ServerConfig::default_capacity(),
        host: Some(HostThresholds {
            keep_available: memory.keep.0,
            pressure_percent: args.pressure,
        }),
        most_connections: memory.connections(),
        patience: Duration::from_secs(10),
        acceptor: match keyring {
            None => Box::new(Link::plain),
            Some(keyring) => Box::new(KeyedAcceptor::new(Arc::clone(keyring))?),
        },
    })?)
}

fn start_at(
    args: &ServeArgs,
    listen: SocketAddr,
    keyring: Option<&Arc<Keyring>>,
    memory: ServerMemory,
) -> Result<(Server, RunningBroker), Box<dyn Error>> {
    let server = start_server(args, listen, keyring, memory)?;
    let control = listen.port().saturating_add(CONTROL_OFFSET);
    let config = BrokerConfig {
        server: incarnation(args, keyring),
        name: host_name(),
        paging: server.address(),
        control: args
            .control
            .unwrap_or(SocketAddr::new(listen.ip(), control)),
        advertise: args.advertise,
        peers: args.peers.iter().map(|peer| control_port(peer)).collect(),
        uses_discovery: !args.no_discovery && !listen.ip().is_loopback(),
        seat: args.seat.clone(),
        keys: keyring.cloned(),
    };
    let broker = RunningBroker::start(config, server.handle())?;
    Ok((server, broker))
}

/// What tells this server from others of the machine, in each of its lives. A port that the kernel
/// chooses is another one each time, so such a server is another one each time.
fn identity(listen: SocketAddr, key: Option<Fingerprint>) -> String {
    match listen.port() {
        0 => format!("{listen} {} {key:?}", std::process::id()),
        _ => format!("{listen} {key:?}"),
    }
}

/// SIGTERM and SIGINT wait from now on, for this thread and those it starts. No limit on the size of files ends it.
pub fn block_signals() -> libc::sigset_t {
    signals::block_file_size();
    let set = signals::set_of(&[libc::SIGTERM, libc::SIGINT]);
    signals::block(&set);
    set
}

pub fn wait_for(signals: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: the set was made by `block_signals`.
    unsafe { libc::sigwait(signals, &raw mut signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_advertised_that_others_can_reach() {
        assert!(advertised_address("10.0.0.7").is_ok());
        for text in ["0.0.0.0", "::", "224.0.0.1", "host"] {
            assert!(advertised_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_disk_is_a_path_and_a_size() {
        let disk = "/tmp/a,b,size=4M".parse::<Disk>().unwrap();
        assert_eq!(disk.0.path, PathBuf::from("/tmp/a,b"));
        assert_eq!(disk.0.size, 4 << 20);
        for text in ["/tmp/a", ",size=4M", "/tmp/a,size=x"] {
            assert!(text.parse::<Disk>().is_err(), "{text}");
        }
    }
}
