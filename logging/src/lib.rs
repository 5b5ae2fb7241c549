//! Log lines on standard error that never block.
//!
//! Standard error may be a stopped terminal, or a pipe to a pager whose user does not scroll:
//! a write then blocks for as long. The supervisor and the daemon must not block: processes that
//! join, fork or end wait for the supervisor, tenants for the daemon; nor must a page client, for
//! whose pages a whole tree waits. So their lines go into a bounded queue, which a thread of its
//! own writes ([`LineQueue`]). A line that finds the queue full is lost, and counted.
//!
//! Rule: a process forks before it starts its queue. Until then, lines are written at once.

use std::fmt;
use std::io::{self, Write, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Levels by targets, `debug` or `daemon=trace,warn` for example, over those of `-v`.
pub const VARIABLE: &str = "SELFPAGE_LOG";

/// Most lines that wait to be written.
const QUEUE: usize = 1024;

/// The queue in use.
static CURRENT: RwLock<Option<QueueWriter>> = RwLock::new(None);

/// The beginning of each line.
static PREFIX: OnceLock<&str> = OnceLock::new();

/// The value of the environment variable is not understood.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid {VARIABLE}={value:?}; expected off, error, warn, info, debug or trace, or TARGET=LEVEL,..."
)]
pub struct FilterError {
    value: String,
    source: ParseError,
}

/// Logs events of the level `default` and above, or of the levels of the environment variable, as lines
/// that begin with `prefix`. Only the first call in a process has an effect.
pub fn init(prefix: &'static str, default: LevelFilter) -> Result<(), FilterError> {
    let levels = std::env::var(VARIABLE).unwrap_or_default();
    let invalid = |source| FilterError {
        value: levels.clone(),
        source,
    };
    let subscriber = tracing_subscriber::fmt()
        // Its report of a write that fails panics where standard error is closed.
        .log_internal_errors(false)
        .with_env_filter(filter(default, &levels).map_err(invalid)?)
        .event_format(LineFormat)
        .with_writer(current_writer)
        .finish();
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = PREFIX.set(prefix);
    }
    Ok(())
}

/// Parses the default level and the directives. Of two directives for one target the later replaces the earlier.
fn filter(default: LevelFilter, levels: &str) -> Result<EnvFilter, ParseError> {
    // The parser takes a word alone, such as a misspelt level, for a target of all levels.
    for word in levels
        .split(',')
        .filter(|text| !text.is_empty() && !text.contains('='))
    {
        word.parse::<LevelFilter>().map_err(ParseError::from)?;
    }
    EnvFilter::try_new(format!("{default},{levels}"))
}

fn prefix() -> &'static str {
    PREFIX.get().unwrap_or(&"selfpage: ")
}

fn current_writer() -> Box<dyn Write> {
    match &*CURRENT.read().unwrap_or_else(PoisonError::into_inner) {
        Some(queue) => Box::new(queue.clone()),
        None => Box::new(stderr()),
    }
}

/// The format of an event: the prefix, the message, then fields as `key=value`.
struct LineFormat;

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(prefix())?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// The queue of this process's lines, until it is dropped.
pub struct LineQueue {
    sender: QueueWriter,
    written: Arc<AtomicUsize>,
    drain_timeout: Duration,
    thread: Option<WorkerGuard>,
}

impl LineQueue {
    /// Starts the thread. The drop of the queue waits until all lines are written, at most
    /// `drain_timeout`. `None` if no thread can be started: lines are then written at once.
    pub fn start(drain_timeout: Duration) -> Option<Self> {
        // The thread of `tracing_appender` panics where it cannot start.
        std::thread::Builder::new().spawn(|| ()).ok()?.join().ok()?;
        let queue = Self::to(QUEUE, stderr(), drain_timeout);
        *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(queue.sender.clone());
        Some(queue)
    }

    fn to(lines: usize, stream: impl Write + Send + 'static, drain_timeout: Duration) -> Self {
        let (counter, written) = (Arc::new(OnceLock::new()), Arc::default());
        let writer = StreamWriter {
            stream,
            counter: Arc::clone(&counter),
            reported: 0,
            written: Arc::clone(&written),
        };
        let builder = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(lines)
            .thread_name("selfpage-log");
        let (queue, thread) = builder.finish(writer);
        let _ = counter.set(queue.error_counter());
        let sent = Arc::default();
        Self {
            sender: QueueWriter { queue, sent },
            written,
            drain_timeout,
            thread: Some(thread),
        }
    }

    fn is_written(&self) -> bool {
        let sent = self.sender.sent.load(Ordering::Acquire);
        let lost = self.sender.queue.error_counter().dropped_lines();
        self.written.load(Ordering::Acquire) + lost >= sent
    }
}

impl Drop for LineQueue {
    fn drop(&mut self) {
        *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = None;
        let begin = Instant::now();
        while !self.is_written() && begin.elapsed() < self.drain_timeout {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !self.is_written() {
            // Where the queue is full the guard's drop prints on standard output, which belongs to the program.
            std::mem::forget(self.thread.take());
        }
    }
}

/// The sender's end of a queue.
#[derive(Clone)]
struct QueueWriter {
    queue: NonBlocking,
    /// Lines that were sent, including those that were lost.
    sent: Arc<AtomicUsize>,
}

impl Write for QueueWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.sent.fetch_add(1, Ordering::AcqRel);
        self.queue.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The stream that the thread writes to. A stream that fails loses lines, and nothing else.
struct StreamWriter<W> {
    stream: W,
    /// Lines that were lost, and how many of them were reported.
    counter: Arc<OnceLock<ErrorCounter>>,
    reported: usize,
    written: Arc<AtomicUsize>,
}

impl<W: Write> Write for StreamWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.stream.write_all(line);
        let lost = self.counter.get().map_or(0, ErrorCounter::dropped_lines);
        let missing = lost - self.reported;
        if missing > 0 {
            self.reported = lost;
            let why = "standard error was not read";
            let prefix = prefix();
            let _ = writeln!(
                self.stream,
                "{prefix}{missing} lines are left out here: {why}"
            );
        }
        self.written.fetch_add(1, Ordering::AcqRel);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.stream.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    /// A stream whose writes block until it is opened.
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

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let state = self.0.state.lock().unwrap();
            let mut state = self.0.opened.wait_while(state, |(open, _)| !*open).unwrap();
            state.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Sends a line in one write, as the subscriber does.
    fn send(log: &mut LineQueue, n: u32) {
        let line = format!("line {n}\n");
        log.sender.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn a_sender_never_blocks_on_a_stream_that_is_not_read_and_lost_lines_are_counted() {
        let stream = Stopped::default();
        let mut log = LineQueue::to(4, stream.clone(), Duration::MAX);
        // Would never return if it waited: the stream is not open yet.
        (0..100).for_each(|n| send(&mut log, n));
        stream.open();
        drop(log);
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

    #[test]
    fn the_drop_of_a_queue_that_is_not_read_waits_no_longer_than_its_timeout() {
        let mut log = LineQueue::to(4, Stopped::default(), Duration::from_millis(10));
        (0..100).for_each(|n| send(&mut log, n));
        let begin = Instant::now();
        drop(log);
        assert!(begin.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn the_variable_refines_the_level_of_the_option() {
        let enabled = |levels| {
            let filter = filter(LevelFilter::WARN, levels).unwrap();
            let subscriber = tracing_subscriber::fmt().with_env_filter(filter).finish();
            tracing::subscriber::with_default(subscriber, || {
                [
                    tracing::enabled!(target: "daemon", tracing::Level::TRACE),
                    tracing::enabled!(target: "other", tracing::Level::DEBUG),
                    tracing::enabled!(target: "other", tracing::Level::WARN),
                    tracing::enabled!(target: "other", tracing::Level::ERROR),
                ]
            })
        };
        assert_eq!(enabled(""), [false, false, true, true]);
        assert_eq!(enabled("debug"), [false, true, true, true]);
        assert_eq!(enabled("error"), [false, false, false, true]);
        assert_eq!(enabled("off"), [false; 4]);
        assert_eq!(enabled("daemon=trace"), [true, false, true, true]);
        assert!(filter(LevelFilter::WARN, "daemon=loud").is_err());
    }
}
