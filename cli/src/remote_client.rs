//! `selfpage remote-client`, which `selfpage run --store remote:SIZE` starts, and the start itself.

use crate::page_client::{self, PagingFileArgs, begin, create_paging_file, inherited};
use remote_broker::{CONTROL_OFFSET, CONTROL_PORT};
use remote_client::{RemoteConfig, ServerSource, keep};
use remote_keys::{Keyring, KeyringError};
use rustix::fd::RawFd;
use std::error::Error;
use std::net::Ipv6Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{DiskConfig, DiskLocation, StoreConfig};
use supervisor::page_client_link::PageClientConnection;

/// Paging servers without which there is no stripe: four with data and one with their parity.
const STRIPE_SERVERS: u32 = 5;

/// Copies of each page, as far as there are servers.
const REPLICAS: u8 = 2;

/// The way to paging servers for the programs of one `selfpage run`, which starts it.
#[derive(clap::Args)]
#[command(hide = true)]
pub struct RemoteClientArgs {
    /// Control ports of hosts that lend memory, HOST:PORT; without any, hosts on the link are asked for
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<String>,
    /// Links in the clear
    #[arg(long)]
    insecure: bool,
    /// Pages are encrypted before they leave this host
    #[arg(long)]
    encrypt: bool,
    /// Seconds after which an object that is not used becomes part of a stripe
    #[arg(long)]
    stripe_after: Option<u64>,
    /// Bytes of pages at servers
    #[arg(long)]
    size: u64,
    #[command(flatten)]
    file: PagingFileArgs,
    /// The descriptor of the socket to the supervisor
    #[arg(long)]
    socket: RawFd,
}

/// Runs the client.
pub fn remote_client(args: RemoteClientArgs) -> Result<ExitCode, Box<dyn Error>> {
    let socket = inherited(args.socket)?;
    let config = RemoteConfig {
        servers: ServerSource::Broker(args.hosts),
        size: args.size,
        paging_file: args.file.inherited()?,
        replicas: REPLICAS,
        keys: match args.insecure {
            true => None,
            false => Some(Arc::new(Keyring::open(&Keyring::default_folder()?)?)),
        },
        is_encrypted: args.encrypt,
        stripe_after: args.stripe_after.map(Duration::from_secs),
        progress: Arc::default(),
    };
    // What fails at the start is said by `run`.
    Ok(match keep(&config, &socket, begin)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Options of `selfpage run` for remote memory.
#[derive(clap::Args)]
pub struct RemoteOptions {
    /// Machines where `selfpage serve` runs: pages have copies on two, as far as there are two. One is enough, which has
    /// the others in reach; and without any, those on the same link are found
    #[arg(
        long,
        value_name = "HOST[:PORT],...",
        value_delimiter = ',',
        value_parser = parse_host
    )]
    pub remote: Vec<String>,

    /// A machine whose broker is to be asked for remote memory, by its control port (`selfpage serve --control`)
    #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_host)]
    pub broker: Option<String>,

    /// Send pages to other machines in the clear, and not with the keys of the cluster (`selfpage cluster`): every host on
    /// the way can read and change them
    #[arg(long)]
    pub insecure: bool,

    /// Encrypt pages before they leave this machine, with a key that ends with the run: the machines that keep them
    /// cannot read them
    #[arg(long)]
    pub encrypt: bool,

    /// Keep memory that is not used for so many seconds once, and not twice, beside its parity: 64 MiB in 80 MiB of
    /// five machines, any one of which may go. A write to it waits until there are two copies again
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub stripe_after: Option<u64>,
}

impl RemoteOptions {
    /// Its options, and whether each was given.
    pub fn given(&self) -> [(bool, &'static str); 5] {
        [
            (!self.remote.is_empty(), "--remote"),
            (self.broker.is_some(), "--broker"),
            (self.insecure, "--insecure"),
            (self.encrypt, "--encrypt"),
            (self.stripe_after.is_some(), "--stripe-after"),
        ]
    }
}

/// Options of remote memory that do not fit each other.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    #[error("{0}: the store is not remote; give --store remote:SIZE, or ram:SIZE+remote:SIZE")]
    NotRemote(&'static str),
    #[error(
        "this host has no other member in its cluster ({0}): run `selfpage cluster invite` on the paging server's host, and here the command \
         that it prints; or pass --insecure here and there for links in the clear"
    )]
    NoCluster(String),
    #[error(transparent)]
    Keys(#[from] KeyringError),
}

/// Refuses options of remote memory that do not fit each other.
pub fn check(store: Option<&StoreConfig>, options: &RemoteOptions) -> Result<(), OptionError> {
    let is_remote = store.is_some_and(StoreConfig::is_remote);
    let first = options.given().into_iter().find(|(is_given, _)| *is_given);
    match (is_remote, first) {
        (true, _) if !options.insecure => check_cluster(),
        (false, Some((_, option))) => Err(OptionError::NotRemote(option)),
        _ => Ok(()),
    }
}

/// Checks that this host knows the key of another.
fn check_cluster() -> Result<(), OptionError> {
    let folder = Keyring::default_folder()?;
    let no_cluster = || OptionError::NoCluster(folder.display().to_string());
    // A key is of no use here before there are members.
    let keyring = Keyring::find(&folder)?.ok_or_else(no_cluster)?;
    keyring.check_not_removed()?;
    match keyring.has_others()? {
        true => Ok(()),
        false => Err(no_cluster()),
    }
}

/// Starts a client for a store, where it is remote. Machines are named by their servers, and one by its control
/// port; without any, those on the link are asked for.
pub fn start_for(
    store: Option<&StoreConfig>,
    options: &RemoteOptions,
) -> Result<Option<PageClientConnection>, Box<dyn Error>> {
    match store {
        Some(StoreConfig {
            disk: Some(disk), ..
        }) if disk.place == DiskLocation::Remote => {
            let hosts = options
                .remote
                .iter()
                .map(|server| control_of_server(server));
            let hosts = hosts.chain(options.broker.iter().map(|host| control_port(host)));
            let hosts = hosts.map(|host| format!("--hosts={host}"));
            let insecure = options.insecure.then(|| "--insecure".to_owned());
            let encrypt = options.encrypt.then(|| "--encrypt".to_owned());
            let stripe_after = options.stripe_after;
            let stripe = stripe_after.map(|seconds| format!("--stripe-after={seconds}"));
            let options: Vec<String> = hosts.chain(insecure).chain(encrypt).chain(stripe).collect();
            start(&options, disk, stripe_after).map(Some)
        }
        _ => Ok(None),
    }
}

/// Starts a client for a store's pages, and waits until it serves.
fn start(
    options: &[String],
    disk: &DiskConfig,
    stripe_after: Option<u64>,
) -> Result<PageClientConnection, Box<dyn Error>> {
    let (file, file_options) = create_paging_file(disk)?.unzip();
    let size = format!("--size={}", disk.size);
    let options = options.iter().chain(file_options.iter().flatten());
    let options: Vec<&str> = options.chain([&size]).map(String::as_str).collect();
    let client = page_client::start("remote-client", "remote client", &options, file)?;
    warn_of_copies(client.connected, client.named);
    if stripe_after.is_some() && client.connected < STRIPE_SERVERS {
        tracing::warn!(
            "--stripe-after has no effect until {STRIPE_SERVERS} paging servers answer (now: {})",
            client.connected
        );
    }
    Ok(client.connection)
}

fn warn_of_copies(connected: u32, named: u32) {
    if named == 1 {
        tracing::warn!(
            "one paging server has the only copy of each page: if it ends, the program does; run `selfpage serve` on another machine, too"
        );
    } else if connected < named {
        tracing::warn!(
            "{connected} of {named} paging servers answer; the others are used when they do"
        );
    }
}

/// The port in HOST:PORT, and the host as an address has it.
fn split_port(host: &str) -> (String, Option<u16>) {
    if let Some((name, port)) = host.rsplit_once(':')
        // An IPv6 address without brackets has no port.
        && (!name.contains(':') || name.ends_with(']'))
        && let Ok(port) = port.parse()
    {
        return (name.to_owned(), Some(port));
    }
    match host.contains(':') && !host.starts_with('[') {
        true => (format!("[{host}]"), None),
        false => (host.to_owned(), None),
    }
}

/// A number of seconds, or a length of time.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let time = || wired::units::parse_time(text).ok();
    let whole = |time: Duration| (time.subsec_nanos() == 0).then_some(time.as_secs());
    let seconds = text.parse().ok().or_else(|| time().and_then(whole));
    seconds.ok_or_else(|| "expected a whole number of seconds: 600, 600s or 10min".to_owned())
}

/// HOST or HOST:PORT.
pub fn parse_host(host: &str) -> Result<String, String> {
    let (name, port) = split_port(host);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_address = bare.parse::<Ipv6Addr>().is_ok();
    match (
        bare.is_empty(),
        is_address || port.is_some() || !host.contains(':'),
    ) {
        (false, true) => Ok(host.to_owned()),
        (true, _) => Err("no host: expected HOST or HOST:PORT".to_owned()),
        (_, false) => {
            Err("its port is no number up to 65535: expected HOST or HOST:PORT".to_owned())
        }
    }
}

/// HOST:PORT of the control port of a machine that is named by its paging server.
pub fn control_of_server(server: &str) -> String {
    let (host, port) = split_port(server);
    let control = port.map_or(CONTROL_PORT, |port| port.saturating_add(CONTROL_OFFSET));
    format!("{host}:{control}")
}

/// HOST:PORT of a control port, HOST or HOST:PORT.
pub fn control_port(host: &str) -> String {
    let (host, port) = split_port(host);
    format!("{host}:{}", port.unwrap_or(CONTROL_PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_and_a_port_that_there_is() {
        for host in ["a", "a:1", "1.2.3.4:65535", "::1", "[::1]", "[::1]:4763"] {
            assert_eq!(parse_host(host).as_deref(), Ok(host));
        }
        for host in ["", ":1", "[]", "a:", "a:b", "a:65536", "[::1]:65536"] {
            assert!(parse_host(host).is_err(), "{host}");
        }
    }

    #[test]
    fn a_machine_named_by_its_server_has_its_control_port_two_above_it() {
        for (text, expected) in [
            ("near", "near:4765"),
            ("near:9", "near:11"),
            ("10.0.0.1", "10.0.0.1:4765"),
            ("::1", "[::1]:4765"),
            ("[::1]:9", "[::1]:11"),
            ("[::1]", "[::1]:4765"),
        ] {
            assert_eq!(control_of_server(text), expected);
        }
        assert_eq!(control_port("near"), "near:4765");
        assert_eq!(control_port("near:9"), "near:9");
    }
}
