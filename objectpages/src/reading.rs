//! Reads pages from where they are: those of parts, and the live ones of a segment that is mostly dead, which move to
//! another one.

use crate::gather::Gather;
use crate::operations::{ReadRun, errno_of};
use crate::page_table::{PagePlace, hash};
use crate::segments::SegmentNumber;
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
                        Err(why) if why.is_not_found() => {
                            tracing::error!("page {page} is lost: {why}");
                        }
                        Err(why) if why.is_denied() => tracing::error!(
                            "page {page} cannot be read, and the access fails: {why}; credentials have to be renewed before \
                             they expire"
                        ),
                        Err(why) => {
                            tracing::error!(
                                "page {page} cannot be read, and the access fails: {why}"
                            );
                        }
                    }
                    let errno = result.as_ref().err().map_or(Errno::IO, errno_of);
                    error = Some(errno.raw_os_error());
                }
            }
        }
        self.done.extend(self.parts.end_run(run.part, error));
    }

    /// Begins to clean a segment, if too much is dead and none is being cleaned.
    pub(crate) fn clean(&mut self) {
        if self.cleaning.is_some() {
            return;
        }
        if let Some(number) = self.segments.take_to_clean() {
            self.cleaning = Some(number);
            let count = self.segments.pages(number).len() as u32;
            self.operations.read_to_clean(number, count);
        }
    }

    /// Cleaning has ended, well or not.
    pub(crate) fn end_cleaning(&mut self) {
        if let Some(number) = self.cleaning.take() {
            self.segments.end_cleaning(number);
        }
    }

    /// Its live pages were read. One that is not what was written stays: a read of it says so.
    pub(crate) fn on_read_to_clean(
        &mut self,
        segment: SegmentNumber,
        result: Result<Vec<u8>, ObjectError>,
    ) {
        let (mut gather, mut from) = (Gather::default(), Vec::new());
        let pages = self.segments.pages(segment);
        let bytes = match &result {
            Ok(bytes) => &bytes[..],
            // It has died meanwhile, and was deleted.
            Err(_) if pages.is_empty() => &[],
            Err(why) => {
                tracing::warn!("a segment is not cleaned: {why}");
                &[]
            }
        };
        let contents = bytes.as_chunks::<PAGE>().0.iter();
        for (index, (page, contents)) in pages.iter().zip(contents).enumerate() {
            let place = PagePlace {
                segment,
                index: index as u32,
            };
            let is_live =
                (*page as usize) < self.table.len() && self.table.place(*page) == Some(place);
            if is_live && hash(*page, contents) == self.table.hash(*page) {
                gather.push(*page, contents);
                from.push(place);
            }
        }
        match gather.places().is_empty() {
            true => self.end_cleaning(),
            false => self.begin_write(gather, Some(from)),
        }
    }
}
