//! A B-tree in a file four times as large as what may be mapped, or resident, of it.
//!
//!     cargo run --release -p space --example btree [MIB]
//!
//! The tree is built in the file, then searched: nine keys of ten from a tenth of the keys, as
//! programs do. Four arms: by an address space whose VTLB has as many pages as map a quarter of the
//! file; by a stretch with a quarter of the file's pages as frames (the mapped driver of `paging`);
//! by plain `mmap`; and by a client view whose file another program truncates, where the search
//! ends with an error, and `mmap` with SIGBUS.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{PAGE, in_child, status_kb};
use selfpage::{DirectIo, Domain, Mapped};
use space::{AddressSpace, MapFlags, MemoryObject, Rights};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

const RANGE: usize = 2 << 20;
/// Entries of a node: a key and a value, or a key and a child, after a header of 16 bytes.
const ENTRIES: usize = (PAGE - 16) / 16;
const SEARCHES: usize = 100_000;

/// Writes a tree of `pages` nodes: the leaves first, in order, then each level above. Key `k` has
/// the value `3 k`. Returns the keys, and the root's page.
fn build(file: &mut std::fs::File, pages: usize) -> (u64, usize) {
    let mut keys = 0u64;
    // A level has a node for each `ENTRIES` below it.
    let leaves = pages - pages.div_ceil(ENTRIES) - 4;
    let mut level: Vec<(u64, u64)> = Vec::new();
    let mut page = 0;
    let mut write = |entries: &[(u64, u64)], leaf: bool| {
        let mut node = vec![0u8; PAGE];
        node[..8].copy_from_slice(&(entries.len() as u64).to_le_bytes());
        node[8..16].copy_from_slice(&u64::from(leaf).to_le_bytes());
        for (place, (key, value)) in node[16..].chunks_exact_mut(16).zip(entries) {
            place[..8].copy_from_slice(&key.to_le_bytes());
            place[8..].copy_from_slice(&value.to_le_bytes());
        }
        file.write_all(&node).expect("room for the tree");
        page += 1;
        page as u64 - 1
    };
    for _ in 0..leaves {
        let entries: Vec<_> = (keys..keys + ENTRIES as u64).map(|k| (k, 3 * k)).collect();
        keys += ENTRIES as u64;
        level.push((entries[0].0, write(&entries, true)));
    }
    while level.len() > 1 {
        level = level
            .chunks(ENTRIES)
            .map(|nodes| (nodes[0].0, write(nodes, false)))
            .collect();
    }
    (keys, level[0].1 as usize)
}

/// A word of the tree.
fn word(base: usize, offset: usize) -> u64 {
    let at = std::ptr::with_exposed_provenance::<u64>(base + offset);
    // SAFETY: inside the mapped file; another program may change it.
    u64::from_le(unsafe { at.read_volatile() })
}

/// The value of a key. None where the tree is not one, as a truncated file's is.
fn search(base: usize, pages: usize, root: usize, key: u64) -> Option<u64> {
    let mut page = root;
    for _level in 0..8 {
        let node = page * PAGE;
        let (count, leaf) = (word(base, node) as usize, word(base, node + 8) == 1);
        if page >= pages || count == 0 || count > ENTRIES {
            return None;
        }
        let (mut low, mut high) = (0, count);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if word(base, node + 16 + 16 * middle) <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        let value = word(base, node + 24 + 16 * low);
        if leaf {
            return (word(base, node + 16 + 16 * low) == key).then_some(value);
        }
        page = value as usize;
    }
    None
}

/// The tree's file.
struct Tree {
    path: std::path::PathBuf,
    pages: usize,
    keys: u64,
    root: usize,
}

impl Tree {
    fn open(&self) -> OwnedFd {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path);
        file.expect("the tree's file").into()
    }

    /// Searches, and prints what it took.
    fn measure(&self, name: &str, base: usize, tables_before: u64) {
        let mut random = fastrand::Rng::with_seed(4);
        let begin = Instant::now();
        for _ in 0..SEARCHES {
            let key = match random.u32(..10) {
                0 => random.u64(..self.keys),
                _ => random.u64(..self.keys / 10),
            };
            assert_eq!(
                search(base, self.pages, self.root, key),
                Some(3 * key),
                "key {key}"
            );
        }
        let us = begin.elapsed().as_secs_f64() * 1e6 / SEARCHES as f64;
        println!(
            "{name:28} {us:7.2} us a search, page tables +{} kB, resident {} kB of the file",
            status_kb("self", "VmPTE:").saturating_sub(tables_before),
            status_kb("self", "RssFile:") + status_kb("self", "RssAnon:")
        );
    }
}

fn by_space(tree: &Tree) {
    let before = status_kb("self", "VmPTE:");
    let object = MemoryObject::from_file(tree.open()).expect("an object");
    let space = AddressSpace::without_domain(tree.pages * PAGE / RANGE / 4).expect("a space");
    let at = space
        .map(None, tree.pages * PAGE, &object, 0, MapFlags::default())
        .expect("mapped");
    tree.measure("space, a quarter mapped", at, before);
    let stats = space.vtlb_stats();
    println!(
        "    {} misses, {} of {} VTLB pages at most",
        stats.misses, stats.peak_pages, stats.bound
    );
}

fn by_stretch(tree: &Tree) {
    let before = status_kb("self", "VmPTE:");
    let frames = (tree.pages / 4) as u32;
    let domain = Domain::builder()
        .frames(frames)
        .direct_io(DirectIo::PinnedOnly)
        .build()
        .expect("a domain");
    let stretch = domain.allocate(tree.pages * PAGE).expect("a stretch");
    let mapped = Mapped::new(tree.open().as_fd(), 0, tree.pages, false).expect("the driver");
    stretch.bind(mapped).expect("bound");
    tree.measure("stretch, a quarter in frames", stretch.base(), before);
}

fn map_plain(tree: &Tree) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let len = tree.pages * PAGE;
    // SAFETY: a fresh mapping.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::SHARED,
            tree.open(),
            0,
        )
    };
    at.expect("mapped").expose_provenance()
}

fn by_mmap(tree: &Tree) {
    let before = status_kb("self", "VmPTE:");
    tree.measure("plain mmap", map_plain(tree), before);
}

/// Searches for a key in the part of the file that is gone.
fn truncated_view(tree: &Tree) {
    let object = MemoryObject::from_file(tree.open()).expect("an object");
    let space = AddressSpace::without_domain(8).expect("a space");
    let mut view = space.client_view(&object, Rights::READ).expect("a view");
    rustix::fs::ftruncate(tree.open(), (tree.pages / 2 * PAGE) as u64).expect("truncated");
    let call = view.begin();
    let base = call
        .translate(0, tree.pages * PAGE)
        .expect("the whole file")
        .expose_provenance();
    let found = search(base, tree.pages, tree.root, tree.keys - 1);
    let ended = call.end();
    println!(
        "client view of a truncated file: found {found:?}; {}",
        ended.expect_err("the root is gone")
    );
}

fn truncated_mmap(tree: &Tree) {
    let base = map_plain(tree);
    println!(
        "plain mmap of a truncated file: found {:?}",
        search(base, tree.pages, tree.root, tree.keys - 1)
    );
}

fn main() {
    let mib = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(256usize)
        .max(48);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let pages = mib << 8;
    let (keys, root) = build(file.as_file_mut(), pages);
    rustix::fs::ftruncate(file.as_file(), (pages * PAGE) as u64).expect("whole pages");
    let path = file.path().to_path_buf();
    let tree = Tree {
        path,
        pages,
        keys,
        root,
    };
    println!("a B-tree of {keys} keys in {mib} MiB, {SEARCHES} searches");
    let run = |arm: fn(&Tree)| {
        in_child(|| {
            arm(&tree);
            0
        })
    };
    let well = [
        run(by_space),
        run(by_stretch),
        run(by_mmap),
        run(truncated_view),
    ];
    match run(truncated_mmap) {
        Err(libc::SIGBUS) => println!("plain mmap of a truncated file: killed by SIGBUS"),
        other => println!("plain mmap of a truncated file: {other:?}"),
    }
    std::process::exit(i32::from(well.iter().any(|end| *end != Ok(0))));
}
