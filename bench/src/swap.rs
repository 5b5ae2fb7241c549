//! The kernel's own swap, for the time of one arm: on a file, or on zram with lz4.

use crate::cleanup::UndoAction;
use crate::error::checked;
use crate::machine::read;
use crate::prelude::*;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Swap that is on; switched off, and its file or device removed, when dropped.
pub struct Swap {
    /// The zram device's number, where it is on one.
    zram: Option<u32>,
    // In this order: a device is removed after its swap is off.
    _on: UndoGuard,
    _under: UndoGuard,
}

impl Swap {
    /// On a file without holes.
    pub fn on_file(env: &TestEnv, bytes: u64) -> Result<Self> {
        refuse_others()?;
        Self::on_more_file(env, bytes)
    }

    /// On a new zram device with lz4, and beyond it on a file: the kernel fills what is switched on
    /// first.
    pub fn on_zram_and_file(env: &TestEnv, zram: u64, file: u64) -> Result<Vec<Self>> {
        let zram = Self::on_zram(env, zram)?;
        Ok(vec![zram, Self::on_more_file(env, file)?])
    }

    fn on_more_file(env: &TestEnv, bytes: u64) -> Result<Self> {
        let OwnedFile(path, under) = env.file("swap")?;
        Self::on(env, &preallocated(&path, bytes)?, &path, bytes, under)
    }

    /// On a new zram device with lz4.
    pub fn on_zram(env: &TestEnv, bytes: u64) -> Result<Self> {
        refuse_others()?;
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add")
            .or_unavailable("no zram device can be made here (needs CONFIG_ZRAM and root)")?;
        let number: u32 = number
            .trim()
            .parse()
            .or_unavailable("zram-control returned no number")?;
        let under = env.cleanup.register(UndoAction::Zram(number))?;
        let set = |name: &str, value: String| {
            std::fs::write(format!("/sys/block/zram{number}/{name}"), &value)
                .doing(format_args!("set zram{number}'s {name} to {value}"))
        };
        set("comp_algorithm", "lz4".into())?;
        set("disksize", bytes.to_string())?;
        let path = PathBuf::from(format!("/dev/zram{number}"));
        let device = OpenOptions::new()
            .write(true)
            .open(&path)
            .at("open", &path)?;
        let swap = Self::on(env, &device, &path, bytes, under)?;
        Ok(Self {
            zram: Some(number),
            ..swap
        })
    }

    /// Bytes of memory that its compressed pages took at the peak: the fifth figure of zram's mm_stat.
    pub fn peak_ram_bytes(&self) -> u64 {
        let stat = self
            .zram
            .map(|n| read(format!("/sys/block/zram{n}/mm_stat")));
        let peak = |text: String| text.split_whitespace().nth(4)?.parse().ok();
        stat.and_then(peak).unwrap_or(0)
    }

    fn on(env: &TestEnv, area: &File, path: &Path, bytes: u64, _under: UndoGuard) -> Result<Self> {
        sign(area, bytes)?;
        let _on = env.cleanup.register(UndoAction::Swap(path.into()))?;
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a terminated string.
        checked(unsafe { libc::swapon(name.as_ptr(), 0) }).at_as_root("switch on swap on", path)?;
        Ok(Self {
            zram: None,
            _on,
            _under,
        })
    }
}

/// Sets vm.page-cluster for one arm: it is put back when the guard is dropped. The kernel reads 2 to
/// this power pages of swap at once.
pub fn set_page_cluster(env: &TestEnv, cluster: u32) -> Result<UndoGuard> {
    let path = Path::new("/proc/sys/vm/page-cluster");
    env.cleanup.set(path, &cluster.to_string(), read(path))
}

/// Other swap areas would take part in the measurement, and a defect here could damage them.
fn refuse_others() -> Result<()> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    match swaps
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().next())
    {
        None => Ok(()),
        Some(other) => Err(unavailable(format!(
            "swap is on at {other} and would take part: switch it off (swapoff {other}) to measure kernel swap"
        ))),
    }
}

/// A file of our own whose blocks are all there.
pub fn preallocated(path: &Path, bytes: u64) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .at("make", path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).doing(
        format_args!("allocate {bytes} bytes for {}", path.display()),
    )?;
    Ok(file)
}

/// Opens a file past the page cache.
pub fn open_direct(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .doing(format_args!("open {} for direct I/O", path.display()))
}

/// Has what was written to a file on the disk, and none of it in the page cache.
pub fn write_out(file: &File, path: &Path) -> Result<()> {
    let dropped = || rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    file.sync_all()
        .and_then(|()| Ok(dropped()?))
        .at("write out", path)
}

/// Writes the swap header that mkswap(8) writes: version 1, the last page, the magic at the
/// end of the first page (include/linux/swap.h).
fn sign(area: &File, bytes: u64) -> Result<()> {
    let mut header = vec![0u8; PAGE];
    let last_page = u32::try_from(bytes / PAGE as u64 - 1)
        .map_err(|_| anyhow!("{bytes} bytes are too many for one swap area"))?;
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    header[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    area.write_all_at(&header, 0)
        .and_then(|()| area.sync_all())
        .doing("write the swap header")
}
