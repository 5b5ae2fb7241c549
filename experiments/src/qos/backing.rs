//! Where a linked worker's pages go.

use crate::ExperimentError;
use crate::contents::PAGE;
use selfpage::{Contract, DirectIo, Domain, StoreConfig};

/// A store of its own.
#[derive(Clone, Debug, clap::Args)]
pub struct Backing {
    /// A store of its own, written as `selfpage run` takes it.
    #[arg(long)]
    pub store: Option<StoreConfig>,
    /// KiB of frames.
    #[arg(long, default_value_t = 16)]
    pub frames: u64,
}

impl Backing {
    /// A domain over it. The worker does no direct I/O, and says so.
    pub fn domain(&self) -> Result<Domain, ExperimentError> {
        let count = (self.frames << 10) / PAGE as u64;
        let count = u32::try_from(count).map_err(|_| {
            ExperimentError::Options(format!("{} KiB are too many frames", self.frames))
        })?;
        let mut builder = Domain::builder()
            .frames(Contract { g: count, x: count })
            .direct_io(DirectIo::PinnedOnly);
        if let Some(store) = &self.store {
            builder = builder.store(store.clone());
        }
        builder
            .build()
            .map_err(|why| ExperimentError::Worker(why.to_string()))
    }
}
