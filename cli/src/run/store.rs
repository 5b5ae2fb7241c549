//! The default store.

use crate::machine::{Memory, StateFolder};
use store::{DiskConfig, StoreConfig};
use wired::Bytes;

/// The least useful size of compressed RAM.
const LEAST_RAM: u64 = 16 << 20;
/// A swap file may become this large for any small contract: it takes what it needs.
const USUAL_DISK: u64 = 4 << 30;
/// Compressed RAM, times the frames.
const RAM_PER_FRAMES: u64 = 4;
/// Times the frames, for large contracts.
const DISK_PER_FRAMES: u64 = 32;

/// Compressed RAM of four times the frames (a page from there comes back in a fifth of the
/// time a disk takes, and eight times the frames of data usually fit), but at most an eighth
/// of what is available, backed by a file that grows ahead of need, to a quarter of what is free
/// at most.
///
/// Where no folder has room for a file, RAM alone, with the reason.
pub fn choose(frames: u64) -> (StoreConfig, Option<String>) {
    choose_in(StateFolder::find(), frames, Memory::now())
}

fn choose_in(
    folder: Result<StateFolder, String>,
    frames: u64,
    memory: Memory,
) -> (StoreConfig, Option<String>) {
    let folder = match folder {
        Ok(folder) => folder,
        Err(why) => return (ram_alone(frames, memory), Some(why)),
    };
    // It loses its name once it is open.
    let name = format!("swap-{}", std::process::id());
    let disk = (frames * DISK_PER_FRAMES)
        .max(USUAL_DISK)
        .min(folder.free / 4)
        >> 20
        << 20;
    let has_room =
        memory.limit.is_none() || memory.most_paged() >= frames.saturating_add(LEAST_RAM);
    let config = StoreConfig {
        ram: has_room.then(|| ram(frames, memory, 8)),
        disk: Some(DiskConfig {
            grows: true,
            ..DiskConfig::new(folder.path.join(name), disk)
        }),
    };
    (config, None)
}

/// A store without a file: twice as much RAM, since no disk is behind it.
pub fn without_a_file(frames: u64) -> StoreConfig {
    ram_alone(frames, Memory::now())
}

fn ram_alone(frames: u64, memory: Memory) -> StoreConfig {
    StoreConfig {
        ram: Some(ram(frames * 2, memory, 4)),
        disk: None,
    }
}

fn ram(frames: u64, memory: Memory, part: u64) -> u64 {
    let ram = frames.saturating_mul(RAM_PER_FRAMES);
    let there = memory.available.min(memory.most()) / part;
    // Frames and RAM together are what the tree may take.
    let rest = memory.most_paged().saturating_sub(frames);
    let ram = ram.min(there).min(rest).max(LEAST_RAM);
    ram.next_multiple_of(1 << 20)
}

/// Warns where frames and compressed RAM leave the control group no memory for what runs beside them.
pub fn warn_of_full_group(frames: u64, store: Option<&StoreConfig>, memory: &Memory) {
    let asked = frames.saturating_add(store.and_then(|store| store.ram).unwrap_or(0));
    if let Some(limit) = memory.limit.filter(|_| asked > memory.most_paged()) {
        tracing::warn!(
            "warning: the kernel kills processes of this control group, which has {}, once {} of pages are in use: \
             ask for {} at most, frames and compressed RAM together",
            Bytes(limit),
            Bytes(asked),
            Bytes(memory.most_paged() >> 20 << 20)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::LEAST_FREE;

    const MEMORY: Memory = Memory {
        total: 8 << 30,
        available: 4 << 30,
        swap: 0,
        limit: None,
    };

    #[test]
    fn the_default_store_is_bounded_both_ways() {
        for frames in [64 << 10, 64 << 20, 1 << 40] {
            let folder = StateFolder {
                path: "/var/tmp".into(),
                free: LEAST_FREE,
            };
            let (config, why) = choose_in(Ok(folder), frames, MEMORY);
            assert!((LEAST_RAM..=MEMORY.available / 8).contains(&config.ram.unwrap()));
            let disk = config.disk.unwrap();
            assert_eq!((disk.size, disk.grows), (LEAST_FREE / 4, true));
            assert_eq!(why, None);
        }
    }

    #[test]
    fn a_control_group_has_room_for_what_runs_beside_the_pages() {
        let limit = Some(100 << 20);
        let memory = Memory { limit, ..MEMORY };
        let ram_of = |frames_mib: u64| {
            let folder = StateFolder {
                path: "/var/tmp".into(),
                free: LEAST_FREE,
            };
            choose_in(Ok(folder), frames_mib << 20, memory).0.ram
        };
        assert_eq!(
            [64, 68, 69, 90].map(ram_of),
            [Some(16 << 20), Some(16 << 20), None, None]
        );
    }

    #[test]
    fn without_a_place_for_a_file_it_is_ram_alone_and_says_so() {
        let (config, why) = choose_in(Err("/x: read-only".into()), 64 << 20, MEMORY);
        assert_eq!((config.ram, &config.disk), (Some(512 << 20), &None));
        let said = supervisor::run::ram_alone_notice(&config, &why.unwrap());
        assert!(
            said.contains("/x: read-only") && said.contains("512MiB"),
            "{said}"
        );
    }
}
