//! The store where none is asked for.

use crate::machine::{Memory, StateFolder};
use store::{Bytes, DiskConfig, StoreConfig};

/// The least compressed RAM worth having.
const LEAST_RAM: u64 = 16 << 20;
/// The least swap file worth having.
const LEAST_DISK: u64 = 64 << 20;
/// A swap file this large serves any small contract; it costs nothing but disk space.
const USUAL_DISK: u64 = 4 << 30;
/// Compressed RAM, times the frames.
const RAM_PER_FRAMES: u64 = 4;
/// Times the frames, for large contracts.
const DISK_PER_FRAMES: u64 = 32;

/// Why there is no store by default.
#[derive(Debug, thiserror::Error)]
pub enum NoStore {
    /// No folder will do.
    #[error(
        "no folder to keep a swap file in ({0}): name a store with --store, ram:{1} for one in memory alone"
    )]
    Folder(String, Bytes),
    /// There is one, without room.
    #[error(
        "{0} has only {1} free, too little for a swap file: make room, or name a store with --store"
    )]
    Full(String, Bytes),
}

/// Compressed RAM of four times the frames (a page from there comes back in a fifth of the
/// time a disk takes, and eight times the frames of data usually fit), but at most an eighth of what is available,
/// backed by a file of at most a quarter of what is free.
pub fn choose(frames: u64) -> Result<StoreConfig, NoStore> {
    let memory = Memory::now();
    let ram = (frames * RAM_PER_FRAMES)
        .max(LEAST_RAM)
        .min((memory.available.min(memory.most()) / 8).max(LEAST_RAM));
    let ram = ram.next_multiple_of(1 << 20);
    let folder = StateFolder::find().map_err(|why| NoStore::Folder(why, Bytes(ram)))?;
    // It has no name any more once it is open.
    let name = format!("swap-{}", std::process::id());
    let disk = (frames * DISK_PER_FRAMES)
        .max(USUAL_DISK)
        .min(folder.free / 4)
        >> 20
        << 20;
    if disk < LEAST_DISK {
        return Err(NoStore::Full(
            folder.path.display().to_string(),
            Bytes(folder.free >> 20 << 20),
        ));
    }
    Ok(StoreConfig {
        ram: Some(ram),
        disk: Some(DiskConfig::new(folder.path.join(name), disk)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_store_is_bounded_both_ways() {
        for frames in [64 << 10, 64 << 20, 1 << 40] {
            let Ok(config) = choose(frames) else { return };
            let memory = Memory::now();
            assert!(config.ram.unwrap() <= (memory.available / 8).max(LEAST_RAM) + (64 << 20));
            let disk = config.disk.unwrap();
            assert!(disk.size >= LEAST_DISK);
        }
    }
}
