//! Real programs doing real work, whose result is compared bit for bit.

pub mod compile;
pub mod dict;
pub mod redis;
pub mod sort;
pub mod sqlite;
pub mod stress;
pub mod threads;

use crate::contract::{Contract, MIB, Size, Under, bare_only};
use crate::outcome::Outcome;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, ensure, failed, skipped};
use std::io::Read;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_128;

/// One program's work, which touches several times its frames.
pub struct Workload {
    /// A word for it.
    pub name: &'static str,
    /// One line for people.
    pub about: fn(Size) -> String,
    /// The programs it needs, each with the Debian package that has it.
    needs: &'static [(&'static str, &'static str)],
    /// Makes its input, once for both runs.
    prepare: fn(&Sandbox, Size) -> Verdict,
    /// Does the work, and returns the results that must be the same with and without the pager.
    run: fn(&Sandbox, Size, &Under) -> Verdict<Product>,
}

/// What a run made.
pub struct Product {
    /// All of its results, or their digest.
    pub result: String,
    /// How the run went.
    pub outcome: Outcome,
}

impl Product {
    /// What a program printed.
    fn printed(outcome: Outcome) -> Self {
        Self {
            result: outcome.text(),
            outcome,
        }
    }

    /// The digest of a file that a program made, which is removed.
    fn file(path: &Path, outcome: Outcome) -> Verdict<Self> {
        let result = digest(path)?;
        std::fs::remove_file(path).at("remove", path)?;
        Ok(Self { result, outcome })
    }
}

/// All workloads, quickest first.
pub static ALL: [Workload; 7] = [
    threads::THREADS,
    dict::DICT,
    sqlite::SQLITE,
    compile::COMPILE,
    redis::REDIS,
    sort::SORT,
    stress::STRESS,
];

/// Both runs of a workload.
pub struct Comparison {
    /// Without the pager.
    pub bare: Product,
    /// Under the contract; absent where only bare runs are wanted.
    pub paged: Option<Product>,
}

/// Runs a workload bare, then under `contract`, and insists on the same result within
/// the contract's memory. `say` receives the progress.
pub fn compare(
    workload: &Workload,
    size: Size,
    contract: Contract,
    say: &dyn Fn(&str),
) -> Verdict<Comparison> {
    for (program, package) in workload.needs {
        if find(program).is_none() {
            return skipped(format!(
                "{program} is not installed (Debian package {package})"
            ));
        }
    }
    let sandbox = Sandbox::new(workload.name)?;
    say("preparing the input");
    (workload.prepare)(&sandbox, size)?;
    say("without the pager");
    let bare = (workload.run)(&sandbox, size, &Under::Nothing)?;
    ensure(bare.outcome.footprint.peak >= 4 * contract.frames, || {
        format!(
            "the work is too small to say anything: {} MiB at its peak, {} MiB of frames",
            bare.outcome.footprint.peak / MIB,
            contract.frames / MIB
        )
    })?;
    if bare_only() {
        return Ok(Comparison { bare, paged: None });
    }
    say(&format!(
        "under selfpage run --frames {}M",
        contract.frames / MIB
    ));
    let mut paged = (workload.run)(&sandbox, size, &Under::Contract(contract))?;
    if paged.result != bare.result {
        return failed(format!(
            "the results differ: {:.300} under the contract, {:.300} without",
            paged.result, bare.result
        ));
    }
    paged.outcome = paged.outcome.within_contract()?;
    sandbox.check_clean()?;
    Ok(Comparison {
        bare,
        paged: Some(paged),
    })
}

/// The quick contracts besides the default one: little compressed RAM before a disk, so
/// that both stores and the way between them are used, and the disk alone.
pub fn tiers(size: Size) -> Contract {
    let mib = size.scale(128, 24) * MIB;
    size.contract().over(mib, 4096 * MIB)
}

/// A program's path: the distribution's own before anything else on PATH, because shims
/// are scripts that start something else.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// [`find`], for a program that a [`Workload`] needs.
pub(crate) fn found(program: &str) -> Verdict<PathBuf> {
    find(program).map_or_else(|| skipped(format!("{program} is not installed")), Ok)
}

/// A file's digest, with its length.
pub fn digest(path: &Path) -> Verdict<String> {
    let mut file = std::fs::File::open(path).at("open", path)?;
    let (mut hash, mut bytes, mut buffer) = (XxHash3_128::new(), 0, vec![0; 1 << 20]);
    loop {
        let got = file.read(&mut buffer).at("read", path)?;
        if got == 0 {
            return Ok(format!("{bytes} bytes, xxh3 {:032x}", hash.finish_128()));
        }
        hash.write(&buffer[..got]);
        bytes += got as u64;
    }
}
