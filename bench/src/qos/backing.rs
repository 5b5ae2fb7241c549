//! Where a linked worker's pages go: a store of its own, or a contract with the daemon.

use crate::prelude::*;
use protocol::contract_spec::{DiskSpec, FrameSpec};
use selfpage::{Contract, DirectIo, Domain, FEWEST_FRAMES, StoreConfig};
use tenant::{ContractRequest, LinkedTenant, Revocation, RevocationPolicy};

/// Either of the two.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Backing {
    /// A store of its own, written as `selfpage run` takes it.
    pub store: Option<String>,
    /// The daemon's socket.
    pub system: Option<PathBuf>,
    /// The worker's name there.
    pub name: String,
    /// Disk time there, as `--disk` takes it.
    pub disk: Option<String>,
    /// MiB of swap there.
    pub swap: u64,
    /// KiB of frames.
    pub frames: u64,
    /// KiB of frames on top that are not guaranteed.
    pub extra: u64,
    /// It ignores revocations.
    pub refuses: bool,
    /// It always requests more frames.
    pub greedy: bool,
}

impl Default for Backing {
    fn default() -> Self {
        Self {
            store: None,
            system: None,
            name: "worker".into(),
            disk: None,
            swap: 16,
            frames: 16,
            extra: 0,
            refuses: false,
            greedy: false,
        }
    }
}

/// A domain, and the contract it has from elsewhere. Dropped from the top.
pub struct DomainWithContract {
    /// The domain.
    pub domain: Domain,
    tenant: Option<LinkedTenant>,
}

impl DomainWithContract {
    /// Number of revocations.
    pub fn revocations(&self) -> u64 {
        self.tenant.as_ref().map_or(0, LinkedTenant::revocations)
    }

    /// Releases the contract, and the data with it.
    pub fn leave(self) -> Result<()> {
        drop(self.domain);
        self.tenant.map_or(Ok(()), |mut tenant| Ok(tenant.leave()?))
    }
}

impl Backing {
    /// A contract with a daemon: disk time as `--disk` takes it, MiB of swap, KiB of frames.
    pub fn of(system: &DaemonFixture, disk: &str, swap: u64, frames: u64) -> Self {
        Self {
            system: Some(system.socket().to_owned()),
            disk: Some(disk.into()),
            swap,
            frames,
            ..Self::default()
        }
    }

    /// Returns true if the pages of a domain go anywhere.
    pub fn is_some(&self) -> bool {
        self.store.is_some() || self.system.is_some()
    }

    /// A domain over it. The worker does no direct I/O, and declares that.
    pub fn domain(&self) -> Result<DomainWithContract> {
        let (g, x) = (count(self.frames)?, count(self.frames + self.extra)?);
        let terms = FrameSpec { g, x };
        let mut builder = Domain::builder().direct_io(DirectIo::PinnedOnly);
        let g = FEWEST_FRAMES.min(g);
        let mut contract = Contract { g, x };
        let mut tenant = None;
        if let Some(path) = &self.system {
            let disk = self.disk.as_ref().map(|terms| terms.parse::<DiskSpec>());
            let wanted = ContractRequest {
                name: self.name.clone(),
                frames: Some(terms),
                disk: disk.transpose()?,
                swap: Some(self.swap << 20),
                place: None,
            };
            let manners = RevocationPolicy {
                eager: self.greedy,
                on_revocation: self.refuses.then(|| Box::new(refuse) as _),
            };
            let (joined, share) = LinkedTenant::join_with(path, &wanted, manners)?;
            builder = builder.ledger(share.ledger).shared_store(share.store);
            (contract, tenant) = (share.contract, Some(joined));
        }
        if let Some(store) = &self.store {
            builder = builder.store(store.parse::<StoreConfig>()?);
        }
        let domain = builder.frames(contract).build()?;
        Ok(DomainWithContract { domain, tenant })
    }
}

/// Ignores all revocations.
fn refuse(_: Revocation) {
    loop {
        std::thread::park();
    }
}

fn count(kib: u64) -> Result<u32> {
    u32::try_from((kib << 10) / PAGE as u64).map_err(|_| anyhow!("{kib} KiB are too many frames"))
}
