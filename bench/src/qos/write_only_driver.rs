//! The driver that forgets its copies on disk (Nemesis, section 7.2.2): "it 'forgets' that
//! pages have a copy on disk and hence never pages in during a page fault". So every fault
//! pages out, and nothing else.

use selfpage::{Activation, FillOutcome, StretchDriver};

/// Backs a stretch with frames, and a store whose copies are never read.
#[derive(Clone, Copy, Debug)]
pub struct WriteOnlyDriver;

impl StretchDriver for WriteOnlyDriver {
    fn name(&self) -> &'static str {
        "write-only"
    }

    fn evictable(&self) -> bool {
        true
    }

    fn needs_store(&self) -> bool {
        true
    }

    fn fault(&self, fault: &mut Activation<'_>) -> FillOutcome {
        fault.fill_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_pattern::{PAGE, PageAt};
    use selfpage::{Counter, DirectIo, Domain};

    #[test]
    fn pages_go_out_and_never_come_in() {
        let path = std::env::temp_dir().join(format!(
            "selfpage-bench-test-write-only-{}",
            std::process::id()
        ));
        let store = format!("disk:{},size=1M", path.display());
        let domain = Domain::builder()
            .frames(4)
            .store(store.parse().unwrap())
            .direct_io(DirectIo::PinnedOnly)
            .build();
        let Ok(domain) = domain else {
            println!("skipped: no domain here: {}", domain.err().unwrap());
            return;
        };
        let stretch = domain.allocate(32 * PAGE).unwrap();
        stretch.bind(WriteOnlyDriver).unwrap();
        for version in 1..=5 {
            for page in 0..32 {
                // SAFETY: one of the stretch's pages, this test's own.
                let at = unsafe { PageAt::new(stretch.as_ptr(), page) };
                // SAFETY: as above.
                let first = unsafe { stretch.as_ptr().cast::<u64>().add(page as usize * 512 + 1) };
                // SAFETY: as above.
                assert_eq!(unsafe { first.read_volatile() }, 0, "it was forgotten");
                at.write(version);
            }
        }
        let counters = domain.counters();
        assert!(counters.get(Counter::Written) > 4 * 32);
        assert_eq!(counters.get(Counter::DiskReads), 0);
        assert!(
            domain.store_usage().unwrap().holds <= 32,
            "a copy for each page at most"
        );
        drop(stretch);
        drop(domain);
        let _ = std::fs::remove_file(&path);
    }
}
