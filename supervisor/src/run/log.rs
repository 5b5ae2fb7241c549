//! Lines for standard error, written by a thread of its own.
//!
//! Standard error may be a stopped terminal, or a pipe to a pager whose user does not scroll:
//! a write then blocks for as long. The supervisor must not block: processes that join, fork or
//! end wait for it, and so does the daemon. So its lines go into a bounded
//! queue. A line that finds the queue full is left out, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Lines that may wait to be written.
const QUEUE: usize = 1024;

/// The queue and its thread. Without a thread (none could be started) lines are written at once.
pub struct ErrorLog {
    queue: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
    left_out: Arc<AtomicU64>,
}

impl ErrorLog {
    /// Starts the thread.
    pub fn start() -> Self {
        Self::to(QUEUE, std::io::stderr())
    }

    fn to(queue: usize, mut stream: impl std::io::Write + Send + 'static) -> Self {
        let (queue, lines) = sync_channel::<String>(queue);
        let left_out = Arc::new(AtomicU64::new(0));
        let count = left_out.clone();
        let thread = std::thread::Builder::new()
            .name("selfpage-log".into())
            .spawn(move || {
                for line in lines {
                    let _ = writeln!(stream, "{line}");
                    let missing = count.swap(0, Ordering::Relaxed);
                    if missing > 0 {
                        let why = "standard error was not read";
                        let _ =
                            writeln!(stream, "selfpage: {missing} lines are left out here: {why}");
                    }
                }
            });
        Self {
            queue: thread.is_ok().then_some(queue),
            thread: thread.ok(),
            left_out,
        }
    }

    /// Adds a line. Never waits.
    pub fn line(&self, line: String) {
        match &self.queue {
            Some(queue) => {
                if queue.try_send(line).is_err() {
                    self.left_out.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => crate::say!("{line}"),
        }
    }

    /// Waits until all lines are written.
    pub fn finish(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    /// A stream that takes nothing until it is opened.
    #[derive(Clone, Default)]
    struct Stopped(Arc<Stream>);

    #[derive(Default)]
    struct Stream {
        /// True once it is open, and what was written.
        state: Mutex<(bool, Vec<u8>)>,
        opened: Condvar,
    }

    impl Stopped {
        fn open(&self) {
            self.0.state.lock().unwrap().0 = true;
            self.0.opened.notify_all();
        }
    }

    impl std::io::Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let state = self.0.state.lock().unwrap();
            let mut state = self.0.opened.wait_while(state, |(open, _)| !*open).unwrap();
            state.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stream_that_is_not_read_keeps_no_one_waiting_and_what_is_left_out_is_counted() {
        let stream = Stopped::default();
        let mut log = ErrorLog::to(4, stream.clone());
        // Would never return if it waited: the stream is not open yet.
        (0..100).for_each(|n| log.line(format!("line {n}")));
        stream.open();
        log.finish();
        let written = stream.0.state.lock().unwrap().1.clone();
        let written = String::from_utf8(written).unwrap();
        assert!(written.contains("line 0\n"), "{written}");
        let lines = written.lines().filter(|l| l.starts_with("line ")).count();
        let left_out: usize = written
            .lines()
            .filter_map(|l| {
                l.strip_prefix("selfpage: ")?
                    .split(' ')
                    .next()?
                    .parse::<usize>()
                    .ok()
            })
            .sum();
        assert_eq!(lines + left_out, 100, "{written}");
    }
}
