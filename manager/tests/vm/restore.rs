//! Restores: contents, discarded pages, working sets, clones.

use crate::Test;
use crate::common::{Service, await_that, make_cache, mib};
use crate::guest::PAGE;
use manager::client_memory::SharedCache;
use manager::recording::WorkingSetFile;
use manager::snapshot::Snapshot;
use std::process::Command;
use std::sync::Arc;

pub const TESTS: &[Test] = &[
    ("a_guest_reads_its_snapshot", a_guest_reads_its_snapshot),
    ("discarded_pages_read_zero", discarded_pages_read_zero),
    (
        "discards_under_load_lose_nothing",
        discards_under_load_lose_nothing,
    ),
    (
        "a_balloon_that_grows_holds_no_fault_up",
        a_balloon_that_grows_holds_no_fault_up,
    ),
    (
        "a_page_that_the_memfd_has_is_mapped",
        a_page_that_the_memfd_has_is_mapped,
    ),
    ("a_working_set_is_replayed", a_working_set_is_replayed),
    (
        "a_guest_that_uses_all_its_memory_costs_the_next_a_quarter",
        a_guest_that_uses_all_its_memory_costs_the_next_a_quarter,
    ),
    (
        "a_replay_of_several_mappings_is_complete",
        a_replay_of_several_mappings_is_complete,
    ),
    (
        "a_replay_keeps_within_the_frames",
        a_replay_keeps_within_the_frames,
    ),
    (
        "fifty_clones_share_clean_pages",
        fifty_clones_share_clean_pages,
    ),
    (
        "a_cache_without_room_loses_no_page",
        a_cache_without_room_loses_no_page,
    ),
    ("huge_pages_are_served_whole", huge_pages_are_served_whole),
];

/// A tmpfs of 1 MiB.
struct SmallTmpfs(tempfile::TempDir);

impl SmallTmpfs {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=1M", "none"]);
        let mounted = mount.arg(folder.path()).status();
        mounted.is_ok_and(|it| it.success()).then_some(Self(folder))
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(umount.unwrap().success());
    }
}

fn a_cache_without_room_loses_no_page() {
    let Some(tmpfs) = SmallTmpfs::mount() else {
        eprintln!("skipped: no tmpfs can be mounted here (as root it can)");
        return;
    };
    let pages = mib(4);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = crate::common::make_snapshot(folder.path(), pages);
    let path = tmpfs.0.path().join("cache");
    let cache = SharedCache::create(&path, &Snapshot::open(&snapshot, &[]).unwrap());
    let cache = Some(Arc::new(cache.unwrap()));
    let service = Service::over(folder, &snapshot, |config| config.cache = cache);
    let kind = format!("cache:{}", path.display());
    for _ in 0..2 {
        let mut guest = service.guest(&kind, pages * PAGE);
        assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
        guest.run("write 500 400 1");
        assert_eq!(guest.wrong("verify 500 400 1"), 0);
        guest.run("remove 600 100");
        assert_eq!(guest.wrong("zeros 600 100"), 0);
    }
    drop(service);
}

fn a_guest_reads_its_snapshot() {
    let pages = mib(16);
    let service = Service::start(pages, |_| {});
    for (number, kind) in ["private", "memfd", "split"].into_iter().enumerate() {
        let mut guest = service.guest(kind, pages * PAGE);
        assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0, "{kind}");
        guest.run("write 5 10 7");
        assert_eq!(guest.wrong("verify 5 10 7"), 0);
        let counters = service.counters(number as u64 + 1);
        assert_eq!(counters.demand_pages.get(), pages as u64, "{kind}");
    }
    service.await_no_clients();
}

fn discarded_pages_read_zero() {
    let pages = mib(4);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = crate::common::make_snapshot(folder.path(), pages);
    let (path, cache) = make_cache(&snapshot);
    let service = Service::over(folder, &snapshot, |config| config.cache = Some(cache));
    for kind in ["private", "memfd", &path.kind()] {
        let mut guest = service.guest(kind, pages * PAGE);
        // Touched and not, written and not.
        guest.run("verify 0 20 0");
        guest.run("write 10 20 1");
        guest.run("remove 5 40");
        assert_eq!(guest.wrong("zeros 5 40"), 0, "{kind}");
        assert_eq!(guest.wrong("verify 0 5 0"), 0, "{kind}");
        assert_eq!(guest.wrong("verify 45 100 0"), 0, "{kind}");
        guest.run("write 5 40 2");
        assert_eq!(guest.wrong("verify 5 40 2"), 0, "{kind}");
    }
    drop(service);
}

fn discards_under_load_lose_nothing() {
    let pages = mib(8);
    let service = Service::start(pages, |_| {});
    for (number, kind) in ["private", "memfd"].into_iter().enumerate() {
        let mut guest = service.guest(kind, pages * PAGE);
        assert_eq!(guest.wrong("storm 4 4000"), 0, "{kind}");
        let removed = service.counters(number as u64 + 1).removed_pages.get();
        assert!(removed > 0, "{kind}: no page was discarded");
    }
}

/// The kernel answers no fault while a discard is under way, and the balloon begins the next one as soon as the manager has read of it.
fn a_balloon_that_grows_holds_no_fault_up() {
    let pages = mib(8);
    let service = Service::start(pages, |config| {
        config.contract = Some((mib(6), "ram:16M".parse().unwrap()));
    });
    let mut guest = service.guest("memfd", pages * PAGE);
    let read = mib(4);
    assert_eq!(guest.wrong(&format!("verify_beside_discards {read}")), 0);
    assert!(service.counters(1).removed_pages.get() > 0);
}

fn a_page_that_the_memfd_has_is_mapped() {
    let service = Service::start(mib(1), |_| {});
    let mut guest = service.guest("minor-memfd", mib(1) * PAGE);
    guest.run("write 0 20 1");
    // The kernel reports it as a discard, and the memfd keeps the pages.
    guest.run("unmap 0 20");
    assert_eq!(guest.wrong("verify 0 20 1"), 0);
}

fn a_working_set_is_replayed() {
    let pages = mib(32);
    let service = Service::start(pages, |config| config.uses_working_set = true);
    let mut first = service.guest("private", pages * PAGE);
    assert_eq!(first.wrong("random 1 2000"), 0);
    let demand = service.counters(1).demand_pages.get();
    assert!(demand > 1500, "{demand} pages on demand");
    drop(first);
    service.await_no_clients();

    let mut second = service.guest("private", pages * PAGE);
    let counters = service.counters(2);
    await_that("the set is replayed", || {
        counters.replayed_pages.get() == demand
    });
    assert_eq!(second.wrong("random 1 2000"), 0);
    let now = counters.demand_pages.get();
    assert!(
        now * 10 <= demand,
        "{now} pages on demand, {demand} without the set"
    );
    assert_eq!(second.wrong(&format!("verify 0 {pages} 0")), 0);
}

fn a_replay_of_several_mappings_is_complete() {
    let pages = mib(4);
    let service = Service::start(pages, |config| config.uses_working_set = true);
    // Some pages at each end.
    let used = [0, pages - 100].map(|first| format!("verify {first} 100 0"));
    let mut first = service.guest("split", pages * PAGE);
    assert!(used.iter().all(|command| first.wrong(command) == 0));
    drop(first);
    service.await_no_clients();
    let mut second = service.guest("split", pages * PAGE);
    let counters = service.counters(2);
    await_that("the set is replayed", || {
        counters.replayed_pages.get() == 200
    });
    assert!(used.iter().all(|command| second.wrong(command) == 0));
    assert_eq!(counters.demand_pages.get(), 0);
}

fn a_guest_that_uses_all_its_memory_costs_the_next_a_quarter() {
    let pages = mib(4);
    let service = Service::start(pages, |config| config.uses_working_set = true);
    let verify = format!("verify 0 {pages} 0");
    assert_eq!(service.guest("private", pages * PAGE).wrong(&verify), 0);
    service.await_no_clients();
    let snapshot = Snapshot::open(&service.folder.path().join("snapshot.mem"), &[]).unwrap();
    let set = WorkingSetFile::beside(&snapshot).load().unwrap().unwrap();
    assert_eq!(set.runs().map(|run| run.len()).sum::<usize>(), pages / 4);
}

fn a_replay_keeps_within_the_frames() {
    let (pages, frames) = (mib(16), mib(2));
    let service = Service::start(pages, |config| {
        config.uses_working_set = true;
        config.contract = Some((frames, "ram:64M".parse().unwrap()));
    });
    let verify = format!("verify 0 {pages} 0");
    assert_eq!(service.guest("memfd", pages * PAGE).wrong(&verify), 0);
    service.await_no_clients();
    let mut second = service.guest("memfd", pages * PAGE);
    let counters = service.counters(2);
    await_that("the replay begins", || counters.replayed_pages.get() > 0);
    assert!(second.wrong("frames") <= frames);
    assert_eq!(second.wrong(&verify), 0);
    assert!(second.wrong("frames") <= frames);
}

fn fifty_clones_share_clean_pages() {
    const CLONES: usize = 50;
    let pages = mib(16);
    let folder = tempfile::tempdir().unwrap();
    let snapshot = crate::common::make_snapshot(folder.path(), pages);
    let (path, cache) = make_cache(&snapshot);
    let service = Service::over(folder, &snapshot, |config| config.cache = Some(cache));
    let kind = path.kind();
    let mut baseline = service.guest(&kind, PAGE);
    let own: u64 = baseline.run("pss").parse().unwrap();
    let mut clones: Vec<_> = (0..CLONES)
        .map(|_| service.guest(&kind, pages * PAGE))
        .collect();
    let command = format!("verify 0 {pages} 0");
    clones.iter_mut().for_each(|clone| clone.begin(&command));
    clones
        .iter_mut()
        .for_each(|clone| assert_eq!(clone.finish(), "0"));
    // Each writes pages of its own, which the others do not see.
    let written = 16;
    for (number, clone) in clones.iter_mut().enumerate() {
        clone.run(&format!("write 100 {written} {}", number + 1));
    }
    for (number, clone) in clones.iter_mut().enumerate() {
        assert_eq!(
            clone.wrong(&format!("verify 100 {written} {}", number + 1)),
            0
        );
        assert_eq!(clone.wrong("verify 0 100 0"), 0);
    }
    let pss = |guest: &mut crate::common::Guest| guest.run("pss").parse::<u64>().unwrap();
    let sum: u64 = clones.iter_mut().map(pss).sum();
    let one = (pages * PAGE / 1024) as u64;
    let each = own + (written * PAGE / 1024) as u64;
    let most = one * 12 / 10 + CLONES as u64 * each;
    assert!(
        sum <= most,
        "{CLONES} clones of {one} kB take {sum} kB; {most} are expected at most"
    );
    drop(clones);
    drop(service);
}

/// A guest that finds no huge page free waits for one, and reads no zeros.
fn wait_for_huge_pages(service: &Service, setting: &str, wanted: usize) {
    let pages = mib(16);
    let free = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let free: usize = std::fs::read_to_string(free)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    std::fs::write(setting, (wanted + 4 - free).to_string()).unwrap();
    let mut guest = service.guest("unreserved-huge", pages * PAGE);
    guest.begin(&format!("verify 0 {pages} 0"));
    let counters = service.counters(2);
    await_that("it waits for a huge page", || {
        counters.deferred_faults.get() > 3 || counters.faults.get() > 1000
    });
    std::fs::write(setting, (wanted + 8).to_string()).unwrap();
    assert_eq!(guest.finish(), "0");
    drop(guest);
    service.await_no_clients();
}

fn huge_pages_are_served_whole() {
    let setting = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(setting).unwrap_or_default();
    let wanted = before.trim().parse::<usize>().unwrap_or(0) + 8;
    let _ = std::fs::write(setting, wanted.to_string());
    let now = std::fs::read_to_string(setting).unwrap_or_default();
    if now.trim() != wanted.to_string() {
        eprintln!("skipped: {setting} does not give 8 huge pages (as root, write {wanted} to it)");
        return;
    }
    let pages = mib(16);
    let service = Service::start(pages, |config| config.uses_working_set = true);
    let mut guest = service.guest("huge", pages * PAGE);
    assert_eq!(guest.wrong(&format!("verify 0 {pages} 0")), 0);
    assert_eq!(service.counters(1).demand_pages.get(), 8);
    guest.run("remove 0 512");
    assert_eq!(guest.wrong("zeros 0 512"), 0);
    assert_eq!(guest.wrong("verify 512 512 0"), 0);
    drop(guest);
    service.await_no_clients();
    wait_for_huge_pages(&service, setting, wanted);
    std::fs::write(setting, before).unwrap();
}
