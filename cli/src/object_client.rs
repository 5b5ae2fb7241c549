//! `selfpage object-client`, which `selfpage run --store opendal:URL,size=SIZE` starts, and the start itself.

use crate::page_client::{self, PagingFileArgs, begin, create_paging_file, inherited};
use objectpages::{ObjectConfig, keep};
use objectstore::ObjectUrl;
use rustix::fd::RawFd;
use std::error::Error;
use std::process::ExitCode;
use store::StoreConfig;
use supervisor::page_client_link::PageClientConnection;

/// The way to an object store for the programs of one `selfpage run`, which starts it.
#[derive(clap::Args)]
#[command(hide = true)]
pub struct ObjectClientArgs {
    /// The store
    #[arg(long)]
    url: ObjectUrl,
    /// Bytes of pages in the store
    #[arg(long)]
    size: u64,
    #[command(flatten)]
    file: PagingFileArgs,
    /// The descriptor of the socket to the supervisor
    #[arg(long)]
    socket: RawFd,
}

/// Runs the client.
pub fn object_client(args: ObjectClientArgs) -> Result<ExitCode, Box<dyn Error>> {
    let socket = inherited(args.socket)?;
    let config = ObjectConfig {
        url: args.url,
        size: args.size,
        paging_file: args.file.inherited()?,
    };
    // What fails at the start is said by `run`.
    Ok(match keep(&config, &socket, begin)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Checks the URL of a store.
pub fn check(store: Option<&StoreConfig>) -> Result<(), Box<dyn Error>> {
    if let Some(url) = store.and_then(StoreConfig::object_store) {
        url.parse::<ObjectUrl>()?.check_folder()?;
    }
    Ok(())
}

/// Starts a client for a store, where its pages are objects.
pub fn start_for(
    store: Option<&StoreConfig>,
) -> Result<Option<PageClientConnection>, Box<dyn Error>> {
    let Some(config) = store else {
        return Ok(None);
    };
    let (Some(url), Some(disk)) = (config.object_store(), &config.disk) else {
        return Ok(None);
    };
    let (file, file_options) = create_paging_file(disk)?.unzip();
    let options = [format!("--url={url}"), format!("--size={}", disk.size)];
    let options = options.iter().chain(file_options.iter().flatten());
    let options: Vec<&str> = options.map(String::as_str).collect();
    let client = page_client::start("object-client", "object client", &options, file)?;
    Ok(Some(client.connection))
}
