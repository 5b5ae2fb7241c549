//! This process's IO channels to the daemon's disk, which the supervisor opens for it.

use crate::{diagnostics, pager_process};
use iochannel::ChannelClient;
use link::client::open_channel;
use rustix::io::Errno;

/// For this process.
pub struct SupervisorDisk;

impl store::DiskTransport for SupervisorDisk {
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno> {
        let connection = pager_process::connection().ok_or(Errno::NOTCONN)?;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let opened = open_channel(connection, depth).map_err(|why| why.to_string());
        let attached = opened.and_then(|[memory, doorbell, bell]| {
            ChannelClient::attach(memory, doorbell, bell).map_err(|why| why.to_string())
        });
        attached.map_err(|why| {
            diagnostics::log(format_args!("no channel to the system's disk: {why}"));
            Errno::IO
        })
    }

    /// The supervisor does this before it reclaims a process's pages.
    fn wait_for_io(&self) {}
}
