//! The swap filesystem on a block device: a loop device, which needs root.

use disk::swapfs::{DeviceWarning, FileName, FormatOptions, OpenError, SwapFs, UNIT};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A loop device over a file; both are removed at the end.
struct Loop {
    device: PathBuf,
    _file: TempDir,
}

impl Loop {
    fn new(size: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(size).unwrap();
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&path)
            .output()
            .map_err(|error| format!("losetup: {error}"))?;
        let name = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if !made.status.success() || name.is_empty() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned());
        }
        Ok(Self {
            device: name.into(),
            _file: directory,
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
    }
}

/// A loop device, or the reason why there is none.
fn device(size: u64) -> Option<Loop> {
    match Loop::new(size) {
        Ok(device) => Some(device),
        Err(why) => {
            eprintln!("SKIPPED: no loop device: {why}");
            None
        }
    }
}

fn forced() -> FormatOptions {
    FormatOptions {
        size: None,
        force: true,
    }
}

#[test]
fn a_partition_holds_files_and_zeros_them() {
    let Some(disk) = device(8 * UNIT) else { return };
    let path: &Path = &disk.device;
    let outside = File::options().read(true).write(true).open(path).unwrap();
    outside.write_all_at(&vec![0xAA; 4 << 20], 2 << 20).unwrap();
    outside.sync_all().unwrap();

    let mut fs = SwapFs::format(path, &FormatOptions::default()).unwrap();
    assert!(!fs.medium().warnings().contains(&DeviceWarning::Readable));
    let name = FileName::new(b"a tenant's pages").unwrap();
    let file = fs.create(name, 4 * UNIT, b"kept").unwrap();
    let mut scrub = fs.scrub(file).unwrap().unwrap();
    scrub.run().unwrap();
    fs.complete_scrub(scrub).unwrap();
    let piece = fs.extents(file).unwrap().list()[0];
    let mut bytes = vec![1; piece.len as usize];
    let again = File::open(path).unwrap();
    again.read_exact_at(&mut bytes, piece.device).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    drop(fs);
    assert_eq!(
        SwapFs::open(path).unwrap().find(&name).unwrap().blob(),
        b"kept"
    );
}

#[test]
fn a_partition_is_exclusive_while_it_is_open() {
    let Some(disk) = device(4 * UNIT) else { return };
    let path: &Path = &disk.device;
    let fs = SwapFs::format(path, &forced()).unwrap();
    let held = OpenError::Held {
        place: path.display().to_string(),
        holder: Some(std::process::id()),
    };
    assert_eq!(SwapFs::open(path).err(), Some(held));
    assert!(!swap_on(path), "the kernel swaps to it");
    drop(fs);

    let made = Command::new("mkswap").arg("--force").arg(path).output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("SKIPPED: no mkswap");
        return;
    }
    let text = SwapFs::format(path, &FormatOptions::default())
        .err()
        .unwrap()
        .to_string();
    assert!(text.contains("swap space of the kernel"), "{text}");
}

fn swap_on(path: &Path) -> bool {
    let on = Command::new("swapon").arg(path).output();
    let on = on.is_ok_and(|on| on.status.success());
    if on {
        let _ = Command::new("swapoff").arg(path).status();
    }
    on
}
