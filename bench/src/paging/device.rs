//! The device's own limit: the same passes as direct reads and writes of a file, in
//! requests of 1 MiB in order and of a page otherwise, as many at once as threads.

use super::work::Pages;
use crate::prelude::*;
use crate::swap::open_direct;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Pages of a request in order.
const REQUEST: u64 = 256;

/// One thread's access to the device: a buffer and the range that it holds.
pub struct Device {
    file: File,
    buffer: WorkerMemory,
    /// Where requests of [`REQUEST`] pages end, in a pass in order.
    block: Option<Range<u64>>,
    overwrites: bool,
    held: Range<u64>,
    dirty: bool,
}

impl Device {
    /// The file at `path`, whose bytes are all there.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            file: open_direct(path)?,
            buffer: WorkerMemory::new(&MemoryKind::Anonymous, REQUEST, 0)?,
            block: None,
            overwrites: false,
            held: 0..0,
            dirty: false,
        })
    }

    /// Writes what is held and was changed.
    fn put(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.dirty) {
            return Ok(());
        }
        let bytes = (self.held.end - self.held.start) as usize * PAGE;
        // SAFETY: `held` is at most REQUEST pages, the buffer's; no thread writes it during
        // the call.
        let bytes = unsafe { std::slice::from_raw_parts(self.buffer.start(), bytes) };
        self.file
            .write_all_at(bytes, self.held.start * PAGE as u64)
            .doing("write to the device")
    }

    fn get(&mut self) -> Result<()> {
        let bytes = (self.held.end - self.held.start) as usize * PAGE;
        // SAFETY: `held` is at most REQUEST pages, the buffer's; no other thread uses it
        // during the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.buffer.start(), bytes) };
        self.file
            .read_exact_at(bytes, self.held.start * PAGE as u64)
            .doing("read from the device")
    }
}

impl Pages for Device {
    fn begin(&mut self, in_order: Option<Range<u64>>, overwrites: bool) {
        self.block = in_order;
        self.overwrites = overwrites;
        self.held = 0..0;
    }

    fn reach(&mut self, page: u64) -> Result<PageAt> {
        // Out of order nothing is kept: each access is a request.
        if self.block.is_none() || !self.held.contains(&page) {
            self.put()?;
            let end = match &self.block {
                Some(block) => block.end.min(page + REQUEST),
                None => page + 1,
            };
            self.held = page..end;
            if !self.overwrites {
                self.get()?;
            }
        }
        let place = (page - self.held.start) as usize * PAGE;
        // SAFETY: inside the buffer, which this thread alone uses.
        Ok(unsafe { PageAt::at(self.buffer.start().add(place), page) })
    }

    fn leave(&mut self, wrote: bool) -> Result<()> {
        self.dirty |= wrote;
        if self.block.is_some() {
            return Ok(());
        }
        self.put()
    }

    fn end(&mut self) -> Result<()> {
        self.put()
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::CountedPages;
    use super::super::pass::Pass;
    use super::super::schedule::Amount;
    use super::super::work::Workload;
    use super::*;

    #[test]
    fn what_is_written_to_the_device_is_read_from_it() {
        let path =
            std::env::temp_dir().join(format!("selfpage-bench-test-device-{}", std::process::id()));
        std::fs::write(&path, vec![0; 700 * PAGE]).unwrap();
        let amount = Amount {
            pages: 700,
            frames: 10,
            accesses: 100,
            threads: 3,
            seed: 2,
        };
        let work = Workload {
            amount,
            passes: Pass::value_variants(),
            count: &CountedPages::default,
        };
        let figures = work.run(|| Device::open(&path));
        std::fs::remove_file(&path).unwrap();
        match figures {
            Ok(figures) => assert_eq!(figures.len(), Pass::value_variants().len()),
            // A file system in memory has no direct I/O.
            Err(why) => {
                let system = why.downcast_ref::<std::io::Error>();
                assert_eq!(
                    system.and_then(|e| e.raw_os_error()),
                    Some(libc::EINVAL),
                    "{why:#}"
                );
            }
        }
    }
}
