//! The removal of pages from a memfd, with what they hold at that moment.
//!
//! A pipe takes references to the pages (`splice` copies nothing), a hole takes them out of the page cache and of every
//! page table, and then the pipe is read. A store of any process comes before the hole and is read, or faults
//! after it. So no mapping has to be write-protected first, however many there are.
//!
//! A kernel whose `splice` copies would lose stores: [`RemovalPipe::new`] tries it. So would pages of a
//! huge one, since a hole clears those in place while the pipe holds them: the preload library advises
//! every mapping against huge pages.

use super::UNIT;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::{self, Errno};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, pipe_with, splice};
use std::io::IoSliceMut;
use std::ops::Range;
use wired::PAGE;

/// Why a removal gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRemoved {
    /// All pages are where they were.
    Kept(Errno),
    /// Their contents are lost.
    Lost(Errno),
}

/// The pipe.
#[derive(Debug)]
pub struct RemovalPipe {
    from: OwnedFd,
    into: OwnedFd,
}

impl RemovalPipe {
    /// An empty pipe, once a page has come through as it has to. `ENOTSUP`: this kernel copies pages.
    pub fn new() -> io::Result<Self> {
        let (from, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if fcntl_getpipe_size(&into)? < UNIT * PAGE {
            return Err(Errno::MFILE);
        }
        let pipe = Self { from, into };
        pipe.check()?;
        Ok(pipe)
    }

    /// Changes a page that is in the pipe, and expects the change behind it.
    fn check(&self) -> io::Result<()> {
        let memory = memfd_create(c"selfpage-check", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, PAGE as u64)?;
        let (mut page, changed) = ([1; PAGE], [2; PAGE]);
        io::pwrite(&memory, &page, 0)?;
        self.hold(memory.as_fd(), &(0..1))?;
        io::pwrite(&memory, &changed, 0)?;
        punch(memory.as_fd(), &(0..1))?;
        self.read(&mut [IoSliceMut::new(&mut page)])?;
        match page == changed {
            true => Ok(()),
            false => Err(Errno::NOTSUP),
        }
    }

    /// Removes pages of one unit, in ascending order; their contents come into `into`, a page each. All have to be there: a store that
    /// brings one in meanwhile is lost.
    pub fn remove(
        &self,
        memory: BorrowedFd<'_>,
        pages: &[usize],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(), NotRemoved> {
        let kept = |why| {
            self.drain();
            NotRemoved::Kept(why)
        };
        let runs = || {
            let runs = pages.chunk_by(|page, next| page + 1 == *next);
            runs.map(|run| run[0]..run[run.len() - 1] + 1)
        };
        for run in runs() {
            self.hold(memory, &run).map_err(kept)?;
        }
        // A hole for each: what lies between was stored there before the memory was registered, if it is there.
        for (number, run) in runs().enumerate() {
            punch(memory, &run).map_err(|why| match (kept(why), number) {
                (kept, 0) => kept,
                _ => NotRemoved::Lost(why),
            })?;
        }
        self.read(into).map_err(NotRemoved::Lost)
    }

    /// Takes references to a run of pages.
    fn hold(&self, memory: BorrowedFd<'_>, run: &Range<usize>) -> io::Result<()> {
        let (mut offset, end) = ((run.start * PAGE) as u64, (run.end * PAGE) as u64);
        while offset < end {
            let rest = (end - offset) as usize;
            let from = Some(&mut offset);
            match splice(memory, from, &self.into, None, rest, SpliceFlags::NONBLOCK)? {
                0 => return Err(Errno::IO),
                _ => continue,
            }
        }
        Ok(())
    }

    fn read(&self, mut into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        while !into.is_empty() {
            match io::readv(&self.from, into)? {
                0 => return Err(Errno::IO),
                count => IoSliceMut::advance_slices(&mut into, count),
            }
        }
        Ok(())
    }

    /// Lets go of what is held.
    fn drain(&self) {
        let mut page = [0; PAGE];
        while io::read(&self.from, &mut page[..]).is_ok_and(|count| count > 0) {}
    }
}

/// Takes pages out of the page cache, and out of every process's reach.
pub fn punch(memory: BorrowedFd<'_>, pages: &Range<usize>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (offset, len) = ((pages.start * PAGE) as u64, (pages.len() * PAGE) as u64);
    fallocate(memory, flags, offset, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    fn memory(pages: u8) -> OwnedFd {
        let memory = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
        for page in 0..pages {
            let offset = u64::from(page) * PAGE as u64;
            io::pwrite(&memory, &[page + 1; PAGE], offset).unwrap();
        }
        memory
    }

    fn remove(
        pipe: &RemovalPipe,
        memory: &OwnedFd,
        pages: &[usize],
    ) -> Result<Vec<u8>, NotRemoved> {
        let mut contents = vec![[0; PAGE]; pages.len()];
        let mut into: Vec<_> = contents.iter_mut().map(|it| IoSliceMut::new(it)).collect();
        pipe.remove(memory.as_fd(), pages, &mut into)?;
        Ok(contents.iter().map(|page| page[PAGE - 1]).collect())
    }

    #[test]
    fn pages_leave_with_what_they_hold() {
        let (pipe, memory) = (RemovalPipe::new().unwrap(), memory(9));
        punch(memory.as_fd(), &(3..4)).unwrap();
        assert_eq!(remove(&pipe, &memory, &[1, 2, 4, 7]), Ok(vec![2, 3, 5, 8]));
        let blocks = fstat(&memory).unwrap().st_blocks as usize * 512;
        // 0, 8, and 5 and 6, which lie between.
        assert_eq!(blocks / PAGE, 4);
    }

    #[test]
    fn pages_stay_where_one_of_them_cannot_be_held() {
        let (pipe, memory) = (RemovalPipe::new().unwrap(), memory(4));
        // Beyond the end.
        let outcome = remove(&pipe, &memory, &[1, 2, 9]);
        assert_eq!(outcome, Err(NotRemoved::Kept(Errno::IO)));
        assert_eq!(remove(&pipe, &memory, &[0, 1, 2]), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn stores_of_another_thread_are_read_or_stay() {
        use std::sync::atomic::{AtomicU64, Ordering};
        const STORES: u64 = 200_000;
        let (pipe, memory) = (RemovalPipe::new().unwrap(), memory(1));
        io::pwrite(&memory, &[0; PAGE], 0).unwrap();
        // SAFETY: a fresh mapping of the memfd, which lives until the process ends.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                PAGE,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &memory,
                0,
            )
        };
        // SAFETY: an aligned word of that mapping.
        let word: &AtomicU64 = unsafe { &*mapped.unwrap().cast() };
        // Each removal leaves zero behind, and what was counted is read: nothing is lost or counted twice.
        let counted = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for _ in 0..STORES {
                    word.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut counted = 0;
            while !thread.is_finished() {
                let mut page = [0; PAGE];
                // What is removed has to be there.
                std::hint::black_box(word.load(Ordering::Relaxed));
                let into = &mut [IoSliceMut::new(&mut page)];
                pipe.remove(memory.as_fd(), &[0], into).unwrap();
                counted += u64::from_ne_bytes(page[..8].try_into().unwrap());
            }
            counted
        });
        assert_eq!(counted + word.load(Ordering::Relaxed), STORES);
    }
}
