//! `selfpage vm`: serves the memory of microVMs that are restored from a snapshot.

mod serve;

use manager::control::{ControlReply, ControlRequest, request};
use manager::save::SaveEvent;
use serve::{ServeArgs, serve};
use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing::level_filters::LevelFilter;
use wired::Bytes;

/// Serve the memory of microVMs that are restored from a snapshot, each under a contract of its own.
#[derive(clap::Args)]
pub struct VmArgs {
    #[command(subcommand)]
    command: VmCommand,
}

#[derive(clap::Subcommand)]
enum VmCommand {
    Serve(Box<ServeArgs>),
    Show(ShowArgs),
    Save(SaveArgs),
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
pub fn log_level(args: &VmArgs) -> LevelFilter {
    match &args.command {
        VmCommand::Serve(args) if args.verbose > 0 => LevelFilter::DEBUG,
        VmCommand::Serve(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    }
}

/// Carries out `selfpage vm`.
pub fn vm(args: VmArgs) -> Result<ExitCode, Box<dyn Error>> {
    match args.command {
        VmCommand::Serve(args) => serve(*args),
        VmCommand::Show(args) => {
            crate::machine::end_at_closed_pipes();
            show(&args)
        }
        VmCommand::Save(args) => save(&args),
    }
}

fn unreachable(socket: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |why| {
        let socket = socket.display();
        match why.kind() {
            ErrorKind::PermissionDenied => {
                format!("the manager's socket {socket} keeps this user out: {why}")
            }
            // A path that no message carries.
            ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                format!("the manager at {socket} cannot be asked: {why}")
            }
            _ => format!(
                "no manager is reached at {socket}: {why}; start one by `selfpage vm serve --socket {socket}`"
            ),
        }
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode, Box<dyn Error>> {
    let replies =
        request(&args.socket, &ControlRequest::Show).map_err(unreachable(&args.socket))?;
    let mut clients = None;
    for reply in replies {
        match reply? {
            ControlReply::Clients(all) => clients = Some(all),
            ControlReply::Refused(why) => return Err(why.into()),
            ControlReply::Save(_) => {}
        }
    }
    let clients = clients.ok_or("the manager ended before it replied; ask again")?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&clients)?);
        return Ok(ExitCode::SUCCESS);
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
