//! The arms: each is a way to get a page.

use super::fixed_reply::{FixedReply, Protocol, Wait};
use super::paging_server::PageReader;
use super::rebuild::{self, Redundancy};
use super::server_process::ServerProcess;
use super::source::{DiskReader, Figures, measure};
use super::{Amount, RemotePlan};
use crate::prelude::*;

/// A way to get a page; its description stands in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum RemoteArm {
    /// a fault of an unmodified program under `selfpage run --store remote:SIZE`
    PageIn,
    /// a read of the remote client, through an IO channel
    Channel,
    /// a read of `selfpage serve`, by a client that polls
    Server,
    /// GET of memcached
    Memcached,
    /// GET of memcached, by a client that polls
    MemcachedPolled,
    /// GET of redis-server
    Redis,
    /// as many bytes each way between two sockets; both ends sleep in read
    Echo,
    /// the same; both ends poll
    EchoPolled,
    /// a direct read of a file
    Disk,
    /// a read of the remote client, of two copies on three servers, of which one is killed
    RebuildCopies,
    /// a read of the remote client, of a stripe on five servers, of which one is killed
    RebuildStripe,
}

impl RemoteArm {
    /// Returns true if it has a server killed.
    pub fn is_rebuild(self) -> bool {
        matches!(self, Self::RebuildCopies | Self::RebuildStripe)
    }
}

/// Runs an arm once.
pub fn run(env: &TestEnv, arm: RemoteArm, amount: Amount) -> Result<Figures> {
    let stored = |protocol, wait| {
        let server = ServerProcess::key_value(protocol, amount.pages)?;
        let mut source = FixedReply::connect(server.address, protocol, wait)?;
        source.fill(amount.pages)?;
        measure(&mut source, amount)
    };
    match arm {
        RemoteArm::PageIn | RemoteArm::Channel => page_in(env, arm, amount),
        RemoteArm::Server => {
            let server = ServerProcess::paging(env, amount.pages)?;
            measure(
                &mut PageReader::connect(server.address, amount.pages)?,
                amount,
            )
        }
        RemoteArm::Memcached => stored(Protocol::Memcached, Wait::Sleep),
        RemoteArm::MemcachedPolled => stored(Protocol::Memcached, Wait::Poll),
        RemoteArm::Redis => stored(Protocol::Redis, Wait::Sleep),
        RemoteArm::Echo => measure(&mut FixedReply::echo(Wait::Sleep)?, amount),
        RemoteArm::EchoPolled => measure(&mut FixedReply::echo(Wait::Poll)?, amount),
        RemoteArm::Disk => DiskReader::new(env, amount.pages)?.measure(amount),
        RemoteArm::RebuildCopies => rebuild::run(env, amount, Redundancy::Copies),
        RemoteArm::RebuildStripe => rebuild::run(env, amount, Redundancy::Stripe),
    }
}

fn page_in(env: &TestEnv, arm: RemoteArm, amount: Amount) -> Result<Figures> {
    let server = ServerProcess::paging(env, amount.pages)?;
    let plan = |threads| {
        WorkerPlan::Remote(RemotePlan {
            is_paged: arm == RemoteArm::PageIn,
            server: server.address,
            pages: amount.pages,
            accesses: amount.accesses,
            threads,
            seed: amount.seed,
        })
    };
    let of_threads = |threads| -> Result<Figures> {
        let mut command = plan(threads).command()?;
        if arm == RemoteArm::PageIn {
            let frames = amount.pages / 8 * PAGE as u64;
            let bytes = amount.pages * PAGE as u64;
            command = env.paged_remotely(frames, bytes * 3 / 2, server.address, &command)?;
        }
        Worker::start(command)?.finish()
    };
    let single = of_threads(1)?;
    let pipelined_us = of_threads(amount.depth as u64)?.pipelined_us;
    Ok(Figures {
        pipelined_us,
        ..single
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_has_a_name_and_a_description() {
        for arm in RemoteArm::value_variants() {
            assert_eq!(RemoteArm::from_str(&arm.name(), false), Ok(*arm));
            assert!(!arm.about().is_empty(), "{arm:?}");
        }
    }
}
