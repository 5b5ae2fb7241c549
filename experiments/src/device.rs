//! The device's own limit: the same passes as direct reads and writes of a file, in
//! requests of 1 MiB in order and of a page otherwise.

use crate::ExperimentError;
use crate::access::{Amount, Figure, Pass};
use crate::contents::{PAGE, PageAt, mix};
use crate::error::while_doing;
use crate::memory::{Kind, Memory};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// Pages of a request in order.
const REQUEST: u64 = 256;

/// Does all passes on the file at `path` with one thread.
pub fn run(path: &Path, amount: Amount) -> Result<Vec<Figure>, ExperimentError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(while_doing(format!(
            "open {} for direct I/O",
            path.display()
        )))?;
    let buffer = Memory::new(&Kind::Anonymous, REQUEST, 0)?;
    let mut device = Device {
        file,
        buffer,
        amount,
        versions: vec![1; amount.pages as usize],
    };
    Pass::ALL.iter().map(|pass| device.pass(*pass)).collect()
}

struct Device {
    file: File,
    buffer: Memory,
    amount: Amount,
    versions: Vec<u8>,
}

impl Device {
    fn pass(&mut self, pass: Pass) -> Result<Figure, ExperimentError> {
        let random = matches!(pass, Pass::RandomRead | Pass::RandomReadModifyWrite);
        let mut each_ns = Vec::new();
        let begin = Instant::now();
        let mut pages = 0;
        if random {
            while pages < self.amount.accesses {
                let one = Instant::now();
                self.random(pass, mix(self.amount.seed ^ pages) % self.amount.pages)?;
                each_ns.push(one.elapsed().as_nanos() as u64);
                pages += 1;
            }
        } else {
            while pages < self.amount.pages {
                let count = REQUEST.min(self.amount.pages - pages);
                self.ordered(pass, pages, count)?;
                pages += count;
            }
        }
        let elapsed_ns = begin.elapsed().as_nanos() as u64;
        each_ns.sort_unstable();
        let at = |part: usize| {
            each_ns
                .get(each_ns.len() * part / 100)
                .copied()
                .unwrap_or(0)
        };
        Ok(Figure {
            pass,
            pages,
            elapsed_ns,
            p50_ns: at(50),
            p99_ns: at(99),
        })
    }

    fn ordered(&mut self, pass: Pass, first: u64, count: u64) -> Result<(), ExperimentError> {
        if pass == Pass::Fill {
            (0..count).for_each(|i| self.shown(first, i).write(1));
            return self.put(first, count);
        }
        self.get(first, count)?;
        (0..count).try_for_each(|i| self.shown(first, i).check(1))
    }

    fn random(&mut self, pass: Pass, page: u64) -> Result<(), ExperimentError> {
        self.get(page, 1)?;
        let version = self.versions[page as usize];
        self.shown(page, 0).probe(version)?;
        if pass == Pass::RandomReadModifyWrite {
            let next = version.wrapping_add(1);
            self.versions[page as usize] = next;
            self.shown(page, 0).advance(next);
            self.put(page, 1)?;
        }
        Ok(())
    }

    /// Page `first + i` of the file, as it lies at place `i` of the buffer.
    fn shown(&self, first: u64, i: u64) -> PageAt {
        let place = self.buffer.start().wrapping_add(i as usize * PAGE);
        // SAFETY: place `i` of the buffer, below REQUEST, used by this thread alone.
        unsafe { PageAt::at(place, first + i) }
    }

    fn put(&self, first: u64, count: u64) -> Result<(), ExperimentError> {
        // SAFETY: the buffer has REQUEST pages, which nobody writes during the call.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.buffer.start(), count as usize * PAGE) };
        self.file
            .write_all_at(bytes, first * PAGE as u64)
            .map_err(while_doing("write to the device"))
    }

    fn get(&self, first: u64, count: u64) -> Result<(), ExperimentError> {
        // SAFETY: the buffer has REQUEST pages, which nobody else uses during the call.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.buffer.start(), count as usize * PAGE) };
        self.file
            .read_exact_at(bytes, first * PAGE as u64)
            .map_err(while_doing("read from the device"))
    }
}
