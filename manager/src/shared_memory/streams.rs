//! Streams of faults in order, and how much to bring in for each: more as long as it goes on.
//!
//! Rule: pure. Several processes may go through one object at a time.

/// Pages brought in for one fault at most.
pub const WINDOW: usize = 32;

/// Streams of an object that are followed at a time.
const FOLLOWED: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The page behind the last that was brought in.
    next: usize,
    window: usize,
    /// When it went on last, in faults of the object.
    at: u64,
}

/// The streams of one object.
#[derive(Debug, Default)]
pub struct Streams {
    streams: [Stream; FOLLOWED],
    faults: u64,
}

impl Streams {
    /// How many pages to bring in from `page` on, for a fault there. [`Streams::advance`] follows.
    pub fn window(&mut self, page: usize) -> usize {
        self.faults += 1;
        let faults = self.faults;
        let follows = |it: &Stream| it.window > 0 && it.next == page;
        let oldest = || (0..FOLLOWED).min_by_key(|it| self.streams[*it].at);
        let goes_on = self.streams.iter().position(follows);
        let at = goes_on.or_else(oldest).unwrap_or(0);
        let stream = &mut self.streams[at];
        stream.window = match goes_on {
            Some(_) => (2 * stream.window).min(WINDOW),
            None => 1,
        };
        stream.at = faults;
        stream.next = page + 1;
        stream.window
    }

    /// So many pages came in by the last window.
    pub fn advance(&mut self, page: usize, count: usize) {
        let last = self.streams.iter_mut().find(|it| it.at == self.faults);
        if let Some(stream) = last {
            stream.next = page + count.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The windows of faults that each begin where the window before ended.
    fn follow(streams: &mut Streams, page: &mut usize) -> usize {
        let window = streams.window(*page);
        streams.advance(*page, window);
        *page += window;
        window
    }

    #[test]
    fn windows_grow_while_a_stream_goes_on() {
        let (mut streams, mut page) = (Streams::default(), 7);
        let windows: Vec<_> = (0..7).map(|_| follow(&mut streams, &mut page)).collect();
        assert_eq!(windows, [1, 2, 4, 8, 16, WINDOW, WINDOW]);
        assert_eq!(streams.window(3), 1);
        assert_eq!(
            streams.window(page),
            WINDOW,
            "another fault does not end it"
        );
    }

    #[test]
    fn streams_of_several_processes_are_told_apart() {
        let mut streams = Streams::default();
        let mut pages = [0, 1000, 2000];
        for _ in 0..6 {
            pages.iter_mut().for_each(|page| {
                follow(&mut streams, page);
            });
        }
        assert_eq!(streams.window(pages[1]), WINDOW);
    }

    #[test]
    fn faults_out_of_order_bring_in_one_page_each() {
        let mut streams = Streams::default();
        let windows = (0..100).map(|fault| streams.window(fault * 7919 % 4093));
        assert!(windows.into_iter().all(|window| window == 1));
    }
}
