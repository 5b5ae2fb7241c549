//! Reads pages of parts from where they are.

use crate::operations::{ReadRun, errno_of};
use crate::page_table::{PagePlace, hash};
use crate::transport::ObjectTransport;
use objectstore::ObjectError;
use rustix::io::Errno;
use wired::PAGE;

impl ObjectTransport {
    /// Reads pages of a part from where they are.
    pub(crate) fn read(&mut self, part: usize, at: usize, page: u32, count: u32) {
        let mut run: Option<ReadRun> = None;
        for offset in 0..count {
            let place = self.table.place(page + offset);
            let at = at + offset as usize;
            match (place, &mut run) {
                (None, _) => {
                    // Never written.
                    self.begin_read(run.take());
                    self.parts.fill(part, at, &[0; PAGE]);
                }
                (Some(place), Some(run))
                    if place.segment == run.place.segment
                        && place.index == run.place.index + run.count =>
                {
                    run.count += 1;
                }
                (Some(place), _) => {
                    self.begin_read(run.take());
                    run = Some(ReadRun {
                        part,
                        at,
                        page: page + offset,
                        count: 1,
                        place,
                        doubts: 0,
                    });
                }
            }
        }
        self.begin_read(run);
    }

    fn begin_read(&mut self, run: Option<ReadRun>) {
        if let Some(run) = run {
            self.parts.begin_run(run.part);
            self.operations.read(run);
        }
    }

    /// A run was read, or was not. A page that is not what was written is read again: it has moved meanwhile, or one
    /// answer of many is wrong, as a proxy's is that cuts a body short.
    pub(crate) fn on_read(&mut self, run: ReadRun, result: Result<Vec<u8>, ObjectError>) {
        let mut error = None;
        let bytes = result.as_deref().unwrap_or_default();
        let pages = bytes.as_chunks::<PAGE>().0;
        for offset in 0..run.count {
            let (page, at) = (run.page + offset, run.at + offset as usize);
            let place = PagePlace {
                index: run.place.index + offset,
                ..run.place
            };
            let contents = pages.get(offset as usize);
            let is_right = |contents: &&[u8; PAGE]| hash(page, *contents) == self.table.hash(page);
            match contents.filter(is_right) {
                Some(contents) => self.parts.fill(run.part, at, contents),
                None if self.table.place(page) != Some(place) => self.read(run.part, at, page, 1),
                None if run.is_doubted(&result) => {
                    self.begin_read(Some(run.again(at, page, place)));
                }
                None => {
                    let name = self.operations.name(place.segment);
                    match &result {
                        Ok(_) => tracing::error!(
                            "page {page} is lost: {name} has other contents at page {} than were written",
                            place.index
                        ),
                        Err(why) => tracing::error!("page {page} is lost: {why}"),
                    }
                    let errno = result.as_ref().err().map_or(Errno::IO, errno_of);
                    error = Some(errno.raw_os_error());
                }
            }
        }
        self.done.extend(self.parts.end_run(run.part, error));
    }
}
