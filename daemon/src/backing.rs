//! The disk that the daemon divides: its swap filesystem, its cost model, its thread.

use crate::DaemonError;
use crate::config::Disk;
use crate::own_folder::missing_own_folder;
use crate::persisted_tenants::TenantRecord;
use crate::refusal::Refusal;
use crate::tenant::Tenant;
use crate::zero_writer;
use disk::atropos::Utilization;
use disk::calibrate::{CAPACITY, Calibration, TIME};
use disk::cost_model::{CostModel, Op};
use disk::swapfs::{DeviceWarning, FileError, FormatOptions, OpenError, SwapFs};
use disk::time::Nanos;
use disk::usd::{IoTarget, Usd, UsdConfig};
use frames::allocator::CleaningRate;
use protocol::contract_spec::ContractSpec;
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, fstat, makedev, statx,
};
use rustix::io::fcntl_dupfd_cloexec;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wired::PAGE;

/// How long a daemon that starts waits for a device that the former daemon still holds: one that
/// was killed with I/O under way ends when the I/O does.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// The most that cleaning a frame may be charged, as a multiple of the modelled cost of a write.
/// The model is of a full queue. A write that is alone in the queue is charged for as long as it
/// lasts: six times as much on the devices measured (`selfpage system calibrate`: 85 us alone, 14
/// in a full queue). A tenant that faults reads a page for each that it writes, which doubles it.
const WRITE_COST_MARGIN: u64 = 16;

/// The disk of all tenants.
pub(super) struct Backing {
    pub swap: SwapFs,
    pub usd: Usd,
    pub model: CostModel,
}

impl Backing {
    /// The least rate at which a tenant can write frames out within its own share of the disk. Its threads
    /// go on faulting meanwhile, and the requests that they have submitted already are served first:
    /// these may take all of the next slice.
    pub fn cleaning_rate(&self, terms: &ContractSpec) -> CleaningRate {
        let page = self.model.cost(Op::Write, PAGE as u32);
        let second = Duration::from_secs(1).as_nanos() as f64 * terms.disk.share();
        CleaningRate {
            frames_per_second: (second / (page.0.max(1) * WRITE_COST_MARGIN) as f64) as u32,
            delay: (terms.disk.period.saturating_mul(2)).saturating_sub(terms.disk.slice),
        }
    }

    /// Persists a tenant for the next daemon.
    pub fn persist(&mut self, tenant: &Tenant) -> Result<(), FileError> {
        let Some(file) = tenant.file else {
            return Ok(());
        };
        self.swap.set_blob(file, &tenant.record.encode())
    }

    /// Gives the disk's thread a tenant's swap file, as far as the file may be given out.
    pub fn attach_file(&self, tenant: &Tenant) -> Result<(), Refusal> {
        if let (Some(client), Some(file)) = (tenant.client, tenant.file) {
            let extents = self.swap.extents(file)?;
            let doorbell = tenant.share_doorbell()?;
            self.usd
                .set_target(client, IoTarget::Swap(extents), doorbell);
        }
        Ok(())
    }
}

/// Opens a disk: makes the swap filesystem where there is none, and measures the device
/// whose cost model is not known.
pub(super) fn open(disk: &Disk) -> Result<Backing, DaemonError> {
    let mut swap = open_swap(disk, RELEASE_TIMEOUT)?;
    for note in swap.medium().warnings() {
        tracing::warn!("{}: {note}", disk.swap.display());
    }
    let mut model = cost_model(disk, &mut swap)?;
    let most = Utilization::try_from(disk.capacity).unwrap_or(Utilization::WHOLE);
    model.capacity = model.capacity.min(most);
    let page = model.cost(Op::Read, PAGE as u32);
    let bound = match disk.depth {
        // One request at a time, as in the paper.
        Some(1) => Nanos::ZERO,
        Some(depth) => Nanos(page.0.saturating_mul(depth.into())),
        None => model.bound,
    };
    let settings = UsdConfig {
        bound,
        model: CostModel {
            capacity: model.capacity + zero_writer::share(),
            ..model
        },
        spin: disk.poll_time.0,
    };
    let usd = Usd::start(swap.medium().clone(), settings)
        .map_err(|why| DaemonError::Disk(why.to_string()))?;
    Ok(Backing { swap, usd, model })
}

/// Opens the swap filesystem, or makes it. Waits up to `timeout` for one that is in use.
fn open_swap(disk: &Disk, timeout: Duration) -> Result<SwapFs, DaemonError> {
    let begin = Instant::now();
    let size = disk.size.map(|size| size.0);
    let format = || {
        let options = FormatOptions {
            size,
            // A device or file with other contents is not overwritten.
            force: false,
        };
        if let Some(folder) = missing_own_folder(&disk.swap)? {
            std::fs::create_dir(folder)
                .map_err(|why| DaemonError::Disk(format!("{}: {why}", folder.display())))?;
        }
        let made = SwapFs::format(&disk.swap, &options)?;
        tracing::info!("made a swap filesystem on {}", disk.swap.display());
        Ok(made)
    };
    if !disk.swap.exists() {
        return format();
    }
    let mut is_waiting = false;
    loop {
        match SwapFs::open(&disk.swap) {
            Err(held @ OpenError::Held { .. }) if begin.elapsed() < timeout => {
                if begin.elapsed() > timeout / 30 && !std::mem::replace(&mut is_waiting, true) {
                    tracing::info!(
                        "{held}; this daemon waits {} s for its end",
                        timeout.as_secs()
                    );
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(OpenError::NotOurs { .. }) => return format(),
            opened => {
                let swap = opened?;
                swap.require_size(size)?;
                return Ok(swap);
            }
        }
    }
}

/// A saved calibration, and the filesystem whose device it was measured on.
#[derive(Serialize, Deserialize)]
struct SavedCalibration {
    filesystem: [u8; 16],
    figures: Calibration,
}

/// The file in which the calibration of a device is saved.
pub fn calibration_file(disk: &Disk) -> PathBuf {
    disk.calibration.clone().unwrap_or_else(|| {
        let mut name = disk.swap.file_name().unwrap_or_default().to_os_string();
        name.push(".calibration.toml");
        let folder = match disk.swap.starts_with("/dev") {
            true => Path::new("/var/lib/selfpage"),
            false => disk.swap.parent().unwrap_or(Path::new(".")),
        };
        folder.join(name)
    })
}

/// The saved cost model; without one, that in the records of an earlier daemon's tenants, whose files may take all the
/// room that a measurement needs; without such a record, the disk is measured.
fn cost_model(disk: &Disk, swap: &mut SwapFs) -> Result<CostModel, DaemonError> {
    let kept = saved_calibration(disk)?;
    if let Some(kept) = kept.filter(|kept| kept.filesystem == swap.id()) {
        return Ok(kept.figures.model);
    }
    let mut records = (swap.files().iter()).filter_map(|file| TenantRecord::decode(file.blob()));
    if let Some(model) = records.find_map(|record| record.disk) {
        tracing::warn!(
            "{} has no figures of this disk: those that its tenants were admitted by hold; a daemon that starts \
             without tenants measures it again",
            calibration_file(disk).display()
        );
        // The former daemon's configuration may have promised less.
        return Ok(CostModel {
            capacity: CAPACITY,
            ..model
        });
    }
    tracing::info!("measuring the disk, once, for some seconds");
    Ok(measure(disk, swap)?.model)
}

/// Reads the saved calibration; `None` where its file is missing, or of another version. A file with other contents is an error.
fn saved_calibration(disk: &Disk) -> Result<Option<SavedCalibration>, DaemonError> {
    let path = calibration_file(disk);
    let fail = |why: &dyn std::fmt::Display| {
        let place = path.display();
        DaemonError::Disk(format!("disk.calibration: {place}: {why}"))
    };
    missing_own_folder(&path).map_err(|why| fail(&why))?;
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(fail(&format_args!("{why}: name another file"))),
    };
    let is_calibration = |table: toml::Table| table.contains_key("filesystem");
    match toml::from_str(&text) {
        Ok(kept) => Ok(Some(kept)),
        Err(_) if text.is_empty() || toml::from_str(&text).is_ok_and(is_calibration) => Ok(None),
        Err(_) => Err(fail(
            &"the file holds something else than figures of a disk: name another, or remove it",
        )),
    }
}

/// Measures the device under a swap filesystem, and saves the calibration.
fn measure(disk: &Disk, swap: &mut SwapFs) -> Result<Calibration, DaemonError> {
    let fail = |why: &dyn std::fmt::Display| DaemonError::Disk(why.to_string());
    let figures = Calibration::of(swap, TIME, &mut |_| {}).map_err(|why| fail(&why))?;
    let kept = SavedCalibration {
        filesystem: swap.id(),
        figures,
    };
    let path = calibration_file(disk);
    let text = toml::to_string(&kept).map_err(|why| fail(&why))?;
    if let Some(folder) = missing_own_folder(&path).map_err(|why| fail(&why))? {
        // If the folder cannot be made, the write below fails with the reason.
        let _ = std::fs::create_dir(folder);
    }
    replace(&path, &text).map_err(|why| fail(&format_args!("{}: {why}", path.display())))?;
    Ok(kept.figures)
}

/// Replaces `path` by a file with this text, whatever kind of file was there. A symbolic link is
/// replaced itself, and not followed.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    let mut drawn = [0; 8];
    rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())?;
    name.push(format!(".{:016x}", u64::from_ne_bytes(drawn)));
    let new = folder.join(name);
    let mut file = std::fs::File::create_new(&new)?;
    let written = std::io::Write::write_all(&mut file, text.as_bytes());
    let done = written.and_then(|()| std::fs::rename(&new, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    done
}

/// Checks that a daemon could use a disk, without changing anything, for `selfpage system check`.
/// Returns what is unusual about the disk.
pub fn check_disk(disk: &Disk) -> Result<Vec<DeviceWarning>, DaemonError> {
    saved_calibration(disk)?;
    let size = disk.size.map(|size| size.0);
    let options = FormatOptions { size, force: false };
    let warnings = match (missing_own_folder(&disk.swap)?, disk.swap.file_name()) {
        // The folder is yet to be made: its parent, on the same file system, is checked instead.
        (Some(folder), Some(name)) => SwapFs::check(&folder.with_file_name(name), &options),
        _ => SwapFs::check(&disk.swap, &options),
    };
    Ok(warnings?)
}

/// Measures a disk anew, for `selfpage system calibrate`.
pub fn calibrate_disk(disk: &Disk) -> Result<(Calibration, PathBuf), DaemonError> {
    saved_calibration(disk)?;
    let mut swap = open_swap(disk, Duration::ZERO)?;
    Ok((measure(disk, &mut swap)?, calibration_file(disk)))
}

/// A client's file, as a target that the disk's thread reads. It is never written: the file system would take the
/// daemon for the writer, whom quotas and blocks reserved for root do not bind.
///
/// No call goes to the file's own file system before it is known to be that of the disk: a file
/// system that a program serves may never reply.
pub(super) fn file(fd: &OwnedFd, swap: &SwapFs) -> Result<IoTarget, Refusal> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    let stat = statx(fd, "", flags, StatxFlags::BASIC_STATS)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Err(Refusal::NotRegular);
    }
    let disk = fstat(swap.medium())?;
    let device = match FileType::from_raw_mode(disk.st_mode) {
        FileType::BlockDevice => disk.st_rdev,
        _ => disk.st_dev,
    };
    let own = makedev(stat.stx_dev_major, stat.stx_dev_minor);
    if own != device {
        return Err(Refusal::OtherDevice {
            file: own,
            disk: device,
        });
    }
    let flags = fcntl_getfl(fd)?;
    if flags.contains(OFlags::PATH) || flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
        return Err(Refusal::WrongMode);
    }
    fcntl_setfl(fd, flags | OFlags::DIRECT).map_err(Refusal::NoDirectIo)?;
    Ok(IoTarget::File {
        fd: fcntl_dupfd_cloexec(fd, 0)?,
        size: stat.stx_size,
        writable: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::cost_model::OpCost;
    use protocol::ResumeToken;

    #[test]
    fn a_saved_calibration_replaces_a_link_and_not_the_file_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("figures"), folder.path().join("other"));
        std::fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        replace(&path, "new").unwrap();
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!(
            (read(&path), read(&other)),
            ("new".into(), "precious".into())
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_holds_no_calibration_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk: Disk = toml::from_str("swap = \"/swap\"").unwrap();
        let mut saved = |name: &str, text: Option<&str>| {
            let path = folder.path().join(name);
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            disk.calibration = Some(path);
            let saved = saved_calibration(&disk).map(|saved| saved.is_some());
            saved.map_err(|why| why.to_string())
        };
        assert_eq!(saved("new", None), Ok(false));
        assert_eq!(saved("selfpage/new", None), Ok(false));
        assert_eq!(saved("older", Some("filesystem = 1\n")), Ok(false));
        for (name, text) in [
            ("other", Some("[memory]\nframes = \"1G\"\n")),
            ("text", Some("precious")),
            (".", None),
            ("missing/new", None),
        ] {
            let why = saved(name, text).unwrap_err();
            assert!(why.contains("disk.calibration"), "{why}");
        }
    }

    #[test]
    fn a_cost_model_from_a_record_does_not_keep_the_former_daemons_capacity() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap");
        let options = FormatOptions {
            size: Some(16 << 20),
            force: false,
        };
        let mut swap = SwapFs::format(&path, &options).unwrap();
        let frames = "64M+64M".parse().unwrap();
        let terms = ContractSpec {
            frames,
            disk: "25ms/250ms".parse().unwrap(),
            swap: 1 << 20,
        };
        let process = rustix::process::getpid();
        let mut record = TenantRecord::new(1, "tenant", process, 1, 0, terms);
        record.disk = Some(CostModel {
            read: OpCost::default(),
            write: OpCost::default(),
            bound: Nanos::millis(1),
            capacity: Utilization::percent(10),
        });
        let name = crate::persisted_tenants::file_name(&ResumeToken([1; 16]));
        swap.create(name, terms.swap, &record.encode()).unwrap();
        let mut disk: Disk = toml::from_str("swap = \"swap\"").unwrap();
        disk.swap = path;
        let model = cost_model(&disk, &mut swap).unwrap();
        assert_eq!(model.capacity, CAPACITY);
    }
}
