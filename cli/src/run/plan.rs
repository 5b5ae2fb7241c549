//! The program to run and its resources, checked before any process starts.

use super::figures_file::FiguresFile;
use super::nested::{self, is_nested};
use super::store::{choose, warn_of_full_group, without_a_file};
use super::{Format, OnExit, RunArgs, fault_limits, unit_hint};
use crate::remote_client::RemoteOptions;
use crate::{machine, object_client, preload, remote_client};
use host::direct_io::inherited_direct_io;
use link::MIN_FRAMES;
use link::handshake::RunFlags;
use protocol::contract_spec::{FramePlacement, FrameSpec, SpecError};
use rustix::fd::RawFd;
use std::error::Error;
use std::ffi::OsString;
use std::mem::take;
use std::path::{Path, PathBuf};
use store::StoreConfig;
use supervisor::page_client_link::PageClientConnection;
use supervisor::run::limits;
use supervisor::run::program::{ExecError, Program};
use supervisor::run::{self, RunSpec, open_descriptors};
use tenant::ContractRequest;
use translation::{Capabilities, Feature};
use wired::{Bytes, PAGE, units::size};

/// What is run, and how its figures are shown.
pub struct Plan {
    pub spec: RunSpec,
    pub output: ReportOutput,
}

/// Where the figures go at the end.
pub struct ReportOutput {
    pub stats: Option<Format>,
    pub json: Option<FiguresFile>,
    /// [`machine::oom_kills`] at the start.
    pub oom_kills: u64,
}

/// The reason that no process was started.
pub enum PlanError {
    /// The program does not exist or cannot be executed.
    Program(ExecError),
    /// A failure of selfpage itself.
    Own(Box<dyn Error>),
}

impl<E: Into<Box<dyn Error>>> From<E> for PlanError {
    fn from(why: E) -> Self {
        Self::Own(why.into())
    }
}

/// An error in the options.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("{program}: {why}")]
    Unpageable {
        program: String,
        why: host::Unpageable,
    },
    #[error(
        "{asked} is more than the {} {what}: ask for at most that, less what else runs{}",
        size(*there),
        if *disk { ", and for a disk behind it (--store ram:SIZE+disk:PATH,size=SIZE)" } else { "" }
    )]
    MoreThanThere {
        asked: String,
        there: u64,
        what: &'static str,
        /// True if a disk would help.
        disk: bool,
    },
    #[error(
        "--frames {0}: frames beyond those guaranteed are lent by the system's daemon; ask for them with --system, or \
         for all of them without `+`"
    )]
    Extra(FrameSpec),
    #[error(
        "--ram {} is part of the frames, and the store has compressed RAM of its own: leave --ram out, or name a \
         store of a disk alone (--store disk:PATH,size=SIZE)",
        Bytes(*.0)
    )]
    TwiceRam(u64),
    #[error("{0}")]
    Kernel(String),
    #[error("SELFPAGE_WITHOUT: {0}")]
    Without(translation::UnknownFeature),
}

/// Reads --frames: SIZE, or SIZE+EXTRA.
pub fn parse_frames(text: &str) -> Result<FrameSpec, String> {
    let asked: FrameSpec = text.parse().map_err(|why: SpecError| why.to_string())?;
    if asked.g >= MIN_FRAMES {
        return Ok(asked);
    }
    let [g, least] = [asked.g, MIN_FRAMES].map(|frames| Bytes(u64::from(frames) * PAGE as u64));
    let hint = unit_hint(text);
    Err(format!(
        "{g} is less than the {least} one process needs at the least ({MIN_FRAMES} frames of {PAGE} bytes: an \
         instruction can touch four pages at once, and the pager nails those the kernel and the C library need \
         at any time; each process of the tree is guaranteed as much){hint}"
    ))
}

/// Checks the machine's memory, which a daemon has checked for its own, and the limits of this process.
fn check_machine(
    store: Option<&StoreConfig>,
    frames: u64,
    has_daemon: bool,
) -> Result<(), Box<dyn Error>> {
    if !has_daemon {
        check_memory(frames, store, machine::Memory::now())?;
    }
    let open = open_descriptors().len() as u64;
    Ok(limits::check(store, open, has_daemon)?)
}

/// Checks what the process that carries the store's pages is given.
fn check_client(
    store: Option<&StoreConfig>,
    options: &RemoteOptions,
) -> Result<(), Box<dyn Error>> {
    remote_client::check(store, options)?;
    object_client::check(store)
}

/// Starts the process that carries the store's pages, where one does.
fn start_client(
    store: Option<&StoreConfig>,
    options: &RemoteOptions,
) -> Result<Option<PageClientConnection>, Box<dyn Error>> {
    match object_client::start_for(store)? {
        None => remote_client::start_for(store, options),
        objects => Ok(objects),
    }
}

impl Plan {
    /// Checks the options against the machine.
    pub fn make(mut args: RunArgs) -> Result<Self, PlanError> {
        machine::check_proc()?;
        let program = Program::find(take(&mut args.command)).map_err(PlanError::Program)?;
        let has_daemon = args.system.is_some();
        let asked = frames_asked(args.frames, has_daemon)?;
        let frames = u64::from(asked.x) * PAGE as u64;
        let nested = is_nested();
        if nested {
            nested::notice(&args, &program.name());
        } else {
            check_machine(args.store.as_ref(), frames, has_daemon)?;
        }
        let capabilities = kernel()?;
        check_pageable(&program, args.allow_unpaged)?;
        let preload = preload::find()?;
        check_client(args.store.as_ref(), &args.remote)?;
        let is_default_store = args.store.is_none();
        let store = match args.store {
            _ if nested => None,
            // The daemon's disk, once the contract has its size.
            None if has_daemon => None,
            asked => Some(asked.unwrap_or_else(|| default_store(frames, args.ram.is_some()))),
        };
        check_ram(store.as_ref(), args.ram)?;
        log_settings(frames, args.ram, store.as_ref(), &preload);
        let fault_limits = fault_limits(args.fault_rate, args.cpu)?;
        let flags = RunFlags {
            allow_unpaged: args.allow_unpaged,
            capabilities: capabilities.bits(),
        };
        let request = ContractRequest {
            name: args.name.unwrap_or_else(|| program.name()),
            frames: args.frames,
            disk: args.disk,
            swap: args.swap,
            place: args.numa_node.map(FramePlacement::Node),
        };
        let json = args.stats_json.map(FiguresFile::open).transpose()?;
        let page_client = start_client(store.as_ref(), &args.remote)?;
        let spec = RunSpec {
            program,
            preload: preload_list(preload),
            frames: asked.x,
            store,
            ram: args.ram,
            fallback_store: is_default_store.then(|| without_a_file(frames)),
            daemon: args.system.filter(|_| !nested).map(|path| (path, request)),
            fault_limits,
            cpu: args.cpu,
            flags,
            userfaultfd: translation::userfault::open_device().ok(),
            kill_survivors: args.on_exit == OnExit::Kill,
            share_store: args.share_store,
            direct_io: inherited_direct_io(),
            kept_fds: kept_fds(json.as_ref(), page_client.as_ref()),
            page_client,
        };
        let output = ReportOutput {
            stats: args.stats,
            json,
            oom_kills: machine::oom_kills(),
        };
        Ok(Self { spec, output })
    }
}

/// The frames asked for. Frames beyond those guaranteed are the daemon's to lend.
fn frames_asked(frames: Option<FrameSpec>, has_daemon: bool) -> Result<FrameSpec, RequestError> {
    let asked = frames.unwrap_or(FrameSpec { g: 0, x: 0 });
    match has_daemon || asked.x <= asked.g {
        true => Ok(asked),
        false => Err(RequestError::Extra(asked)),
    }
}

/// Refuses compressed RAM both in the frames and in the store.
fn check_ram(store: Option<&StoreConfig>, ram: Option<u64>) -> Result<(), RequestError> {
    match (ram, store.and_then(|store| store.ram)) {
        (Some(ram), Some(_)) => Err(RequestError::TwiceRam(ram)),
        _ => Ok(()),
    }
}

/// The descriptors that stay open while the program runs.
fn kept_fds(json: Option<&FiguresFile>, page_client: Option<&PageClientConnection>) -> Vec<RawFd> {
    let file = json.map(FiguresFile::descriptor);
    let links = page_client.map(PageClientConnection::descriptors);
    file.into_iter()
        .chain(links.into_iter().flatten())
        .collect()
}

/// Refuses a program that cannot be paged, or warns where it may run so.
fn check_pageable(program: &Program, allow_unpaged: bool) -> Result<(), RequestError> {
    let Err(why) = host::pageable(&program.path) else {
        return Ok(());
    };
    let name = program.name();
    if !allow_unpaged {
        return Err(RequestError::Unpageable { program: name, why });
    }
    tracing::warn!("warning: {name} runs unpaged: {why:#}");
    Ok(())
}

/// The store where none is named, with a notice where that has no file. Compressed RAM is no part of
/// it where the frames have some.
fn default_store(frames: u64, has_ram: bool) -> StoreConfig {
    let (mut store, lack) = choose(frames);
    if has_ram && store.disk.is_some() {
        store.ram = None;
    }
    if let Some(why) = lack {
        tracing::warn!("{}", run::ram_alone_notice(&store, &why));
    }
    store
}

fn log_settings(frames: u64, ram: Option<u64>, store: Option<&StoreConfig>, preload: &Path) {
    if let Some(store) = store {
        let most = ram.map(|ram| Bytes(ram.min(frames / 2)));
        let most = most.map(|most| format!("compressed pages in {most} of them at most, "));
        tracing::info!(
            "{} of frames, {}store {store}, {}",
            Bytes(frames),
            most.unwrap_or_default(),
            preload.display()
        );
    }
    if let Some(limit) = machine::Memory::now().limit {
        tracing::info!("a control group limits memory to {} here", Bytes(limit));
    }
}

/// The value LD_PRELOAD gets: our library first, so that it starts before the others.
fn preload_list(library: PathBuf) -> OsString {
    let mut list = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Frames and compressed RAM are both memory: the machine must have their sum.
fn check_memory(
    frames: u64,
    store: Option<&StoreConfig>,
    memory: machine::Memory,
) -> Result<(), RequestError> {
    let ram = store.and_then(|store| store.ram).unwrap_or(0);
    let there = memory.most();
    let asked = if frames > there {
        format!("--frames {}", Bytes(frames))
    } else if ram > there {
        format!("--store ram:{}", Bytes(ram))
    } else if frames.saturating_add(ram) > there {
        format!("--frames {} with --store ram:{}", Bytes(frames), Bytes(ram))
    } else {
        warn_of_full_group(frames, store, &memory);
        return Ok(());
    };
    let what = match memory.limit {
        Some(_) => "this control group may use",
        None => "of this machine",
    };
    let disk = frames <= there && store.is_some_and(|store| store.disk.is_none());
    Err(RequestError::MoreThanThere {
        asked,
        there,
        what,
        disk,
    })
}

/// Checks that the kernel supports `run`. Returns the features that the tree's pagers use.
fn kernel() -> Result<Capabilities, RequestError> {
    let list = std::env::var("SELFPAGE_WITHOUT").unwrap_or_default();
    let all = Capabilities::from_bits(u32::MAX);
    let kept = all.without_list(&list).map_err(RequestError::Without)?;
    let needed = [Feature::KernelFaults, Feature::Stage];
    if let Some(off) = needed.iter().find(|feature| !kept.has(**feature)) {
        let why = format!("{off} is switched off by SELFPAGE_WITHOUT");
        return Err(RequestError::Kernel(why));
    }
    let probe = Capabilities::probe();
    let mut missing = probe.missing.iter();
    match missing.find(|lack| needed.contains(&lack.feature)) {
        Some(lack) => Err(RequestError::Kernel(crate::doctor::explain(lack))),
        None => Ok(probe.capabilities.for_start().and(kept)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_refused_with_the_figures() {
        let memory = |limit| machine::Memory {
            total: 24 << 30,
            available: 20 << 30,
            swap: 0,
            limit,
        };
        let said = |frames, store: &str, limit| {
            let store: StoreConfig = store.parse().unwrap();
            check_memory(frames, Some(&store), memory(limit))
                .err()
                .map_or(String::new(), |why| why.to_string())
        };
        let huge = said(64 << 20, "ram:100G", None);
        assert!(
            huge.contains("ram:100GiB is more than the 24 GiB of this machine"),
            "{huge}"
        );
        assert!(huge.contains("disk:PATH"), "{huge}");
        let both = said(16 << 30, "ram:16G+disk:/var/tmp,size=1G", None);
        assert!(
            both.contains("--frames 16GiB with --store ram:16GiB"),
            "{both}"
        );
        let limited = said(64 << 20, "ram:1G", Some(512 << 20));
        assert!(
            limited.contains("512 MiB this control group may use"),
            "{limited}"
        );
        assert_eq!(said(64 << 20, "ram:1G", None), "");
        assert_eq!(said(64 << 20, "disk:/var/tmp,size=1T", None), "");
    }
}
