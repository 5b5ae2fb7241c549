//! Moves the live pages of a segment that is mostly dead to another one.

use crate::gather::Gather;
use crate::page_table::{PagePlace, hash};
use crate::segments::SegmentNumber;
use crate::transport::ObjectTransport;
use objectstore::ObjectError;
use wired::PAGE;

impl ObjectTransport {
    /// Begins with a segment, if too much is dead and none is being cleaned.
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
