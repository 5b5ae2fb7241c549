//! This process's IO channels to the daemon's disk, which the keeper opens for it.

use crate::{link, notice};
use ::link::handshake::RawDomainId;
use iochannel::ChannelClient;
use rustix::io::Errno;

/// For the process with this domain.
pub struct Outlet(pub RawDomainId);

impl store::DiskTransport for Outlet {
    fn open(&self, depth: usize) -> Result<ChannelClient, Errno> {
        let port = link::port().ok_or(Errno::NOTCONN)?;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let opened = port
            .open_channel(self.0, depth)
            .map_err(|why| why.to_string());
        let attached = opened.and_then(|[memory, doorbell, bell]| {
            ChannelClient::attach(memory, doorbell, bell).map_err(|why| why.to_string())
        });
        attached.map_err(|why| {
            notice::say(format_args!("no channel to the system's disk: {why}"));
            Errno::IO
        })
    }

    /// The keeper does this before it reclaims a process's pages.
    fn wait_for_io(&self) {}
}
