//! Where a linked worker's pages go: a store of its own, or a contract with the system
//! domain.

use super::tenancy::{Manner, Tenancy};
use crate::ExperimentError;
use crate::contents::PAGE;
use selfpage::{Contract, DirectIo, Domain, FEWEST_FRAMES, StoreConfig};
use std::path::PathBuf;
use system::tenant::Wanted;
use system::terms::{DiskTerms, FrameTerms};

/// Either of the two.
#[derive(Clone, Debug, clap::Args)]
pub struct Backing {
    /// A store of its own, written as `selfpage run` takes it.
    #[arg(long, conflicts_with = "system")]
    pub store: Option<StoreConfig>,
    /// The system domain's socket.
    #[arg(long)]
    pub system: Option<PathBuf>,
    /// What the worker is called there.
    #[arg(long, default_value = "worker")]
    pub name: String,
    /// Disk time there.
    #[arg(long)]
    pub disk: Option<DiskTerms>,
    /// MiB of swap there.
    #[arg(long, default_value_t = 16)]
    pub swap: u64,
    /// KiB of frames.
    #[arg(long, default_value_t = 16)]
    pub frames: u64,
    /// KiB of frames on top that are not guaranteed.
    #[arg(long, default_value_t = 0)]
    pub extra: u64,
    /// It does not give frames back that it is asked for.
    #[arg(long)]
    pub refuses: bool,
    /// It always wants more frames.
    #[arg(long)]
    pub greedy: bool,
}

/// A domain, and the contract it has from elsewhere. Dropped from the top.
pub struct Housed {
    /// The domain.
    pub domain: Domain,
    tenancy: Option<Tenancy>,
}

impl Housed {
    /// How often frames were asked back.
    pub fn asked(&self) -> u64 {
        self.tenancy.as_ref().map_or(0, Tenancy::asked)
    }
}

impl Backing {
    /// Whether the pages of a domain go anywhere.
    pub fn is_some(&self) -> bool {
        self.store.is_some() || self.system.is_some()
    }

    /// A domain over it. The worker does no direct I/O, and says so.
    pub fn domain(&self) -> Result<Housed, ExperimentError> {
        let terms = FrameTerms {
            g: count(self.frames)?,
            x: count(self.frames + self.extra)?,
        };
        let mut builder = Domain::builder().direct_io(DirectIo::PinnedOnly);
        let mut tenancy = None;
        if let Some(path) = &self.system {
            let wanted = Wanted {
                name: self.name.clone(),
                frames: Some(terms),
                disk: self.disk,
                swap: Some(self.swap << 20),
                place: None,
            };
            let manner = Manner {
                answers: !self.refuses,
                greedy: self.greedy,
            };
            let (joined, ledger, store) = Tenancy::join(path, &wanted, manner)?;
            builder = builder.ledger(ledger).shared_store(store);
            tenancy = Some(joined);
        }
        if let Some(store) = &self.store {
            builder = builder.store(store.clone());
        }
        // A tenant's guarantee is the daemon's to keep. Within the tenant the domain is alone,
        // and what it does not use is not to count as promised.
        let (least, x) = (FEWEST_FRAMES.min(terms.g), terms.x);
        let domain = builder.frames(Contract { g: least, x }).build();
        Ok(Housed {
            domain: domain.map_err(|why| ExperimentError::Worker(why.to_string()))?,
            tenancy,
        })
    }
}

fn count(kib: u64) -> Result<u32, ExperimentError> {
    u32::try_from((kib << 10) / PAGE as u64)
        .map_err(|_| ExperimentError::Options(format!("{kib} KiB are too many frames")))
}
