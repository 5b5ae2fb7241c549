//! Reading pages from a source: one at a time, and pipelined.

use super::Amount;
use super::rebuild::RebuildFigures;
use crate::prelude::*;
use crate::statistics::percentile_us;
use crate::swap::{open_direct, preallocated, write_out};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What gives pages.
pub trait PageSource {
    /// Queues a request of a page.
    fn request(&mut self, page: u64) -> Result<()>;
    /// Sends what is queued and receives: how many pages have come, each checked.
    fn receive(&mut self) -> Result<usize>;
}

/// One run of an arm.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Of pages read one at a time.
    pub p50_us: f64,
    /// Of the same.
    pub p99_us: f64,
    /// Time a page, where several are under way.
    pub pipelined_us: Option<f64>,
    /// Of an arm that has a server killed.
    #[serde(default)]
    pub rebuild: Option<RebuildFigures>,
}

impl Figures {
    /// Of times in nanoseconds.
    pub fn of(mut times: Vec<u64>, pipelined_us: Option<f64>) -> Self {
        let [p50_us, p99_us] = [50, 99].map(|percent| percentile_us(&mut times, percent));
        Self {
            p50_us,
            p99_us,
            pipelined_us,
            rebuild: None,
        }
    }
}

/// The pages to read: as many before the clock starts as there are timed of each kind.
pub fn order(amount: Amount, part: u64) -> impl Iterator<Item = u64> {
    let page = move |at| mix(amount.seed << 40 ^ part << 32 ^ at) % amount.pages;
    (0..amount.accesses).map(page)
}

/// Measures a source.
pub fn measure(source: &mut impl PageSource, amount: Amount) -> Result<Figures> {
    let mut times = Vec::with_capacity(amount.accesses as usize);
    for part in [0, 1] {
        times.clear();
        for page in order(amount, part) {
            let begun = Instant::now();
            source.request(page)?;
            while source.receive()? == 0 {}
            times.push(begun.elapsed().as_nanos() as u64);
        }
    }
    let (mut left, mut under_way) = (order(amount, 2), 0);
    let begun = Instant::now();
    loop {
        for page in left.by_ref().take(amount.depth - under_way) {
            source.request(page)?;
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        under_way -= source.receive()?;
    }
    let pipelined = begun.elapsed().as_secs_f64() * 1e6 / amount.accesses as f64;
    Ok(Figures::of(times, Some(pipelined)))
}

/// A page in memory of its own.
#[repr(align(4096))]
pub struct PageBuffer(pub [u8; PAGE]);

impl PageBuffer {
    /// The contents of a page.
    pub fn of(page: u64) -> Box<Self> {
        let mut buffer = Box::new(Self([0; PAGE]));
        // SAFETY: a page of this buffer's alone.
        unsafe { PageAt::at(buffer.0.as_mut_ptr(), page) }.write(1);
        buffer
    }

    /// Copies bytes that came, and checks them.
    pub fn check(&mut self, page: u64, bytes: &[u8]) -> Result<()> {
        self.0.copy_from_slice(bytes);
        // SAFETY: a page of this buffer's alone.
        unsafe { PageAt::at(self.0.as_mut_ptr(), page) }.probe(1)
    }
}

/// A file that is read past the page cache, a page at a time.
pub struct DiskReader {
    file: File,
    _owned: OwnedFile,
}

impl DiskReader {
    /// A file with that many pages.
    pub fn new(env: &TestEnv, pages: u64) -> Result<Self> {
        let owned = env.file("pages")?;
        let file = preallocated(&owned, pages * PAGE as u64)?;
        for page in 0..pages {
            let bytes = PageBuffer::of(page);
            file.write_all_at(&bytes.0, page * PAGE as u64)
                .at("write", &*owned)?;
        }
        write_out(&file, &owned)?;
        let file = open_direct(&owned)?;
        Ok(Self {
            file,
            _owned: owned,
        })
    }

    /// Reads one at a time.
    pub fn measure(&self, amount: Amount) -> Result<Figures> {
        let (mut times, mut buffer) = (Vec::new(), PageBuffer::of(0));
        for page in order(amount, 0) {
            let begun = Instant::now();
            self.file
                .read_exact_at(&mut buffer.0, page * PAGE as u64)
                .doing("read the file")?;
            // SAFETY: a page of this buffer's alone.
            unsafe { PageAt::at(buffer.0.as_mut_ptr(), page) }.probe(1)?;
            times.push(begun.elapsed().as_nanos() as u64);
        }
        Ok(Figures::of(times, None))
    }
}
