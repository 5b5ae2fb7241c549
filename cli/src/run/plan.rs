//! What is to be run and with what, checked before anything starts.

use super::program::{NotRun, Program};
use super::{Args, Format, Remaining};
use crate::{machine, preload};
use rustix::fd::OwnedFd;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use store::{Bytes, StoreConfig};
use system::{MIN_FRAMES, Options};
use translation::{Capabilities, Feature, Report};
use wired::PAGE;

/// Everything `run` needs to know.
pub struct Plan {
    pub program: Program,
    pub preload: PathBuf,
    pub frames: u32,
    pub store: StoreConfig,
    pub options: Options,
    pub userfaultfd: Option<OwnedFd>,
    pub stats: Option<Format>,
    pub stats_json: Option<PathBuf>,
    pub remaining: Remaining,
    /// An inherited descriptor that makes the tree careful from the start.
    pub direct_io: Option<String>,
}

/// Why nothing was started.
pub enum Refusal {
    /// The program is not there or cannot be executed.
    Program(NotRun),
    /// A failure of our own.
    Own(Box<dyn Error>),
}

impl<E: Into<Box<dyn Error>>> From<E> for Refusal {
    fn from(why: E) -> Self {
        Self::Own(why.into())
    }
}

/// What is wrong with what was asked.
#[derive(Debug, thiserror::Error)]
enum Asked {
    #[error("{program}: {why}")]
    Unpageable {
        program: String,
        why: system::Unpageable,
    },
    #[error(
        "--frames {} is more than the {} {what}: ask for at most that, less what else runs",
        Bytes(*asked), Bytes(*there)
    )]
    MoreThanThere {
        asked: u64,
        there: u64,
        what: &'static str,
    },
    #[error("{0}")]
    Kernel(String),
    #[error("SELFPAGE_WITHOUT: {0}")]
    Without(translation::UnknownFeature),
}

/// Reads --frames: bytes, in whole pages.
pub fn parse_frames(text: &str) -> Result<u32, String> {
    let bytes = store::parse_size(text).map_err(|e| e.to_string())?;
    let least = Bytes(u64::from(MIN_FRAMES) * PAGE as u64);
    if bytes < least.0 {
        let unit = text.bytes().all(|b| b.is_ascii_digit());
        let hint = if unit && bytes > 0 {
            format!("; {text} with no unit is bytes: {text}M?")
        } else {
            String::new()
        };
        return Err(format!(
            "{} is less than the {least} one process needs at the least ({MIN_FRAMES} frames of {PAGE} bytes: an \
             instruction can touch four pages at once, and the pager nails those the kernel and the C library need \
             at any time; each process of the tree is guaranteed as much){hint}",
            Bytes(bytes)
        ));
    }
    if !bytes.is_multiple_of(PAGE as u64) {
        let down = bytes / PAGE as u64 * PAGE as u64;
        return Err(format!(
            "not a whole number of frames of {PAGE} bytes: {} would be",
            Bytes(down)
        ));
    }
    let most = u64::from(frames::Frame::MOST);
    match u32::try_from(bytes / PAGE as u64) {
        Ok(frames) if u64::from(frames) <= most => Ok(frames),
        _ => Err(format!(
            "more than the {} a contract can hold",
            Bytes(most * PAGE as u64)
        )),
    }
}

impl Plan {
    /// Checks what was asked against what is there.
    pub fn make(args: Args) -> Result<Self, Refusal> {
        let verbose = args.verbose;
        let say = |line: String| {
            if verbose > 0 {
                crate::say!("selfpage: {line}");
            }
        };
        let program = Program::find(args.command).map_err(Refusal::Program)?;
        check_memory(args.frames)?;
        let without = kernel()?;
        if let Err(why) = system::pageable(&program.path) {
            let name = program.name();
            match args.allow_unpaged {
                true => crate::say!("selfpage: warning: {name} runs unpaged: {why}"),
                false => return Err(Asked::Unpageable { program: name, why }.into()),
            }
        }
        let preload = preload::find()?;
        let frames = u64::from(args.frames) * PAGE as u64;
        let store = match args.store {
            Some(asked) => asked,
            None => super::store::choose(frames)?,
        };
        say(format!(
            "{} of frames, store {store}, {}",
            Bytes(frames),
            preload.display()
        ));
        if let Some(limit) = machine::Memory::now().limit {
            say(format!(
                "a control group limits memory to {} here",
                Bytes(limit)
            ));
        }
        let options = Options {
            verbosity: verbose,
            allow_unpaged: args.allow_unpaged,
            without,
        };
        Ok(Self {
            program,
            preload,
            frames: args.frames,
            store,
            options,
            userfaultfd: translation::userfault::open_device().ok(),
            stats: args.stats,
            stats_json: args.stats_json,
            remaining: args.remaining,
            direct_io: system::notify::inherited_direct_io(),
        })
    }

    /// The value LD_PRELOAD gets: ours first, so that it comes up before the others.
    pub fn preload_list(&self) -> OsString {
        let mut list = self.preload.clone().into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            list.push(":");
            list.push(others);
        }
        list
    }
}

fn check_memory(frames: u32) -> Result<(), Asked> {
    let asked = u64::from(frames) * PAGE as u64;
    let memory = machine::Memory::now();
    let what = if memory.limit.is_some() {
        "this control group may use"
    } else {
        "of this machine"
    };
    match memory.most() {
        there if asked > there => Err(Asked::MoreThanThere { asked, there, what }),
        _ => Ok(()),
    }
}

/// Whether the kernel can do it at all. Returns the features to do without, as bits.
fn kernel() -> Result<u64, Asked> {
    let list = std::env::var("SELFPAGE_WITHOUT").unwrap_or_default();
    let all = Capabilities::from_bits(u32::MAX);
    let kept = all.without_list(&list).map_err(Asked::Without)?;
    if kept.has(Feature::KernelFaults) && Capabilities::probe_fast().has(Feature::KernelFaults) {
        return Ok(u64::from(!kept.bits()));
    }
    let report = Report::gather(&list).map_err(Asked::Without)?;
    let lack = report
        .probe
        .lacks
        .into_iter()
        .find(|lack| lack.feature == Feature::KernelFaults);
    Err(Asked::Kernel(match lack {
        Some(lack) => format!(
            "{} ({}). To mend it: {}",
            lack.consequence, lack.reason, lack.mend
        ),
        None => "kernel-faults is switched off by SELFPAGE_WITHOUT".into(),
    }))
}
