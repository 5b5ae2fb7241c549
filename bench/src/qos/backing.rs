//! Where a linked worker's pages go: a store of its own, or a contract with the system
//! domain.

use crate::ExperimentError;
use crate::contents::PAGE;
use protocol::contract_spec::{DiskSpec, FrameSpec};
use selfpage::{Contract, DirectIo, Domain, FEWEST_FRAMES, StoreConfig};
use std::path::PathBuf;
use tenant::{ContractRequest, LinkedTenant, Revocation, RevocationPolicy};

/// Either of the two.
#[derive(Clone, Debug, clap::Args)]
pub struct Backing {
    /// A store of its own, written as `selfpage run` takes it.
    #[arg(long, conflicts_with = "system")]
    pub store: Option<StoreConfig>,
    /// The system domain's socket.
    #[arg(long)]
    pub system: Option<PathBuf>,
    /// The worker's name there.
    #[arg(long, default_value = "worker")]
    pub name: String,
    /// Disk time there.
    #[arg(long)]
    pub disk: Option<DiskSpec>,
    /// MiB of swap there.
    #[arg(long, default_value_t = 16)]
    pub swap: u64,
    /// KiB of frames.
    #[arg(long, default_value_t = 16)]
    pub frames: u64,
    /// KiB of frames on top that are not guaranteed.
    #[arg(long, default_value_t = 0)]
    pub extra: u64,
    /// It ignores revocations.
    #[arg(long)]
    pub refuses: bool,
    /// It always requests more frames.
    #[arg(long)]
    pub greedy: bool,
}

/// A domain, and the contract it has from elsewhere. Dropped from the top.
pub struct Housed {
    /// The domain.
    pub domain: Domain,
    tenant: Option<LinkedTenant>,
}

impl Housed {
    /// Number of revocations.
    pub fn asked(&self) -> u64 {
        self.tenant.as_ref().map_or(0, LinkedTenant::revocations)
    }

    /// Releases the contract, and the data with it.
    pub fn leave(self) -> Result<(), ExperimentError> {
        drop(self.domain);
        match self.tenant {
            Some(mut tenant) => tenant
                .leave()
                .map_err(|why| ExperimentError::Worker(why.to_string())),
            None => Ok(()),
        }
    }
}

impl Backing {
    /// Returns true if the pages of a domain go anywhere.
    pub fn is_some(&self) -> bool {
        self.store.is_some() || self.system.is_some()
    }

    /// A domain over it. The worker does no direct I/O, and declares that.
    pub fn domain(&self) -> Result<Housed, ExperimentError> {
        let terms = FrameSpec {
            g: count(self.frames)?,
            x: count(self.frames + self.extra)?,
        };
        let failed = |why: &dyn std::fmt::Display| ExperimentError::Worker(why.to_string());
        let mut builder = Domain::builder().direct_io(DirectIo::PinnedOnly);
        let mut contract = Contract {
            g: FEWEST_FRAMES.min(terms.g),
            x: terms.x,
        };
        let mut tenant = None;
        if let Some(path) = &self.system {
            let wanted = ContractRequest {
                name: self.name.clone(),
                frames: Some(terms),
                disk: self.disk,
                swap: Some(self.swap << 20),
                place: None,
            };
            let manners = RevocationPolicy {
                eager: self.greedy,
                on_revocation: self.refuses.then(|| Box::new(refuse) as _),
            };
            let joined = LinkedTenant::join_with(path, &wanted, manners);
            let (joined, share) = joined.map_err(|why| failed(&why))?;
            builder = builder.ledger(share.ledger).shared_store(share.store);
            (contract, tenant) = (share.contract, Some(joined));
        }
        if let Some(store) = &self.store {
            builder = builder.store(store.clone());
        }
        let domain = builder.frames(contract).build();
        Ok(Housed {
            domain: domain.map_err(|why| failed(&why))?,
            tenant,
        })
    }
}

/// Ignores all revocations.
fn refuse(_: Revocation) {
    loop {
        std::thread::park();
    }
}

fn count(kib: u64) -> Result<u32, ExperimentError> {
    u32::try_from((kib << 10) / PAGE as u64)
        .map_err(|_| ExperimentError::Options(format!("{kib} KiB are too many frames")))
}
