//! The start of a process that carries pages of a `selfpage run`: a remote client, or an object client.

use host::seqpacket;
use pageclient::PagingFile;
use pageclient::protocol::{self, ClientEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::RecvFlags;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use store::{DiskConfig, SetupError};
use supervisor::page_client_link::PageClientConnection;

/// How long the client may take to say that it serves: as long as connecting, and some more.
const START: Duration = Duration::from_secs(15);

/// A client that serves.
pub struct PageClient {
    /// For the supervisor.
    pub connection: PageClientConnection,
    /// Servers that are connected, and those that were named.
    pub connected: u32,
    pub named: u32,
}

/// Starts `selfpage COMMAND`, which is `name`, with the number of its socket as `--socket`, and waits until it serves. `file` is passed, too.
pub fn start(
    command: &str,
    name: &'static str,
    options: &[&str],
    file: Option<OwnedFd>,
) -> Result<PageClient, Box<dyn Error>> {
    let (own, theirs) = seqpacket::pair()?;
    let mut process = Command::new(std::env::current_exe()?);
    process
        .arg(command)
        .args(options)
        .args(["--socket", &theirs.as_raw_fd().to_string()])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // A signal of the terminal is the program's, not the pager's.
        .process_group(0);
    let passed = [
        Some(theirs.as_raw_fd()),
        file.as_ref().map(AsRawFd::as_raw_fd),
    ];
    // SAFETY: makes a system call for each descriptor.
    unsafe {
        process.pre_exec(move || {
            for fd in passed.into_iter().flatten() {
                let fd = BorrowedFd::borrow_raw(fd);
                fcntl_setfd(fd, FdFlags::empty())?;
            }
            Ok(())
        })
    };
    // It ends when its socket is closed, which the supervisor waits for.
    drop(process.spawn()?);
    drop((theirs, file));
    let patience = Timespec::try_from(START)?;
    let mut fds = [PollFd::new(&own, PollFlags::IN)];
    if poll(&mut fds, Some(&patience))? == 0 {
        return Err(format!("the {name} does not start: it has not answered for 15 s").into());
    }
    let mut message = seqpacket::receive(&own, RecvFlags::DONTWAIT)?;
    let doorbell = message.fds[0].take();
    match (protocol::decode(message.as_slice()), doorbell) {
        (
            Some(ClientEvent::Ready {
                generation,
                connected,
                named,
            }),
            Some(doorbell),
        ) => Ok(PageClient {
            connection: PageClientConnection {
                name,
                generation,
                socket: own,
                doorbell,
            },
            connected,
            named,
        }),
        (Some(ClientEvent::Failed { why }), _) => Err(why.into()),
        _ => Err(format!("the {name} has ended at its start").into()),
    }
}

/// The local file of a client.
#[derive(clap::Args)]
pub struct PagingFileArgs {
    /// The descriptor of the paging file
    #[arg(long, requires = "paging_file_size")]
    paging_file: Option<RawFd>,
    /// Bytes of pages in the paging file
    #[arg(long)]
    paging_file_size: Option<u64>,
}

impl PagingFileArgs {
    /// The file, if there is one.
    pub fn inherited(&self) -> rustix::io::Result<Option<PagingFile>> {
        let file = self.paging_file.map(inherited).transpose()?;
        let file = file.zip(self.paging_file_size);
        Ok(file.map(|(file, size)| PagingFile {
            file: Arc::new(file),
            size,
        }))
    }
}

/// Makes the file that has the pages which a client's servers or store do not take, and its options.
pub fn create_paging_file(disk: &DiskConfig) -> Result<Option<(OwnedFd, [String; 2])>, SetupError> {
    let Some(file) = &disk.last_resort else {
        return Ok(None);
    };
    let whole = DiskConfig {
        size: PagingFile::bytes(file.size),
        ..(**file).clone()
    };
    let fd = whole.create_file()?;
    let options = [
        format!("--paging-file={}", fd.as_raw_fd()),
        format!("--paging-file-size={}", file.size),
    ];
    Ok(Some((fd, options)))
}

/// A descriptor that `run` passes, and nothing else of this process uses.
pub fn inherited(fd: RawFd) -> rustix::io::Result<OwnedFd> {
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&fd, fcntl_getfd(&fd)? | FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Keeps the memory of a client's process in RAM. It ends with the supervisor: no limit on the size of files ends it, and no
/// signal to all processes of a service, whose program may write pages until its own end.
pub fn begin() {
    host::signals::block_requests_to_end();
    host::signals::block_file_size();
    // It has descriptors for each process of the tree, beside those of the store.
    host::descriptor_limit::raise();
    for lack in host::wiring::wire_pager() {
        tracing::debug!("{lack}");
    }
}
