//! Load without an end: threads that check, write and discard pages of their own until they are stopped, and measure the
//! longest of their steps.

use super::{Memory, MemoryPart, PAGE};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);
static THREADS: Mutex<Vec<JoinHandle<Outcome>>> = Mutex::new(Vec::new());

/// What a thread has seen.
#[derive(Default)]
struct Outcome {
    wrong: usize,
    steps: usize,
    longest: Duration,
}

/// Starts so many threads, or ends them: the pages that were wrong, all steps, and the microseconds of the longest.
pub fn obey(memory: &Memory, command: &str, n: &[usize]) -> String {
    if command == "endure" {
        begin(memory.part(), n[0]);
        return "enduring".into();
    }
    let (wrong, steps, longest) = end();
    format!("{wrong} {steps} {longest}")
}

fn begin(part: MemoryPart, threads: usize) {
    STOP.store(false, Ordering::SeqCst);
    let pages = part.len / PAGE / threads;
    let endure =
        |thread: usize| std::thread::spawn(move || part.endure(thread, thread * pages, pages));
    let mut running = THREADS.lock().expect("the threads");
    running.extend((0..threads).map(endure));
}

fn end() -> (usize, usize, u128) {
    STOP.store(true, Ordering::SeqCst);
    let threads = std::mem::take(&mut *THREADS.lock().expect("the threads"));
    let outcomes: Vec<_> = (threads.into_iter())
        .map(|thread| thread.join().expect("a thread"))
        .collect();
    let longest = outcomes.iter().map(|it| it.longest).max();
    (
        outcomes.iter().map(|it| it.wrong).sum(),
        outcomes.iter().map(|it| it.steps).sum(),
        longest.unwrap_or_default().as_micros(),
    )
}

impl MemoryPart {
    fn endure(self, thread: usize, first: usize, pages: usize) -> Outcome {
        let memory = self.memory();
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let mut versions: Vec<Option<u64>> = vec![Some(0); pages];
        let mut outcome = Outcome::default();
        while !STOP.load(Ordering::SeqCst) {
            outcome.steps += 1;
            let page = random.usize(..pages);
            let begin = Instant::now();
            outcome.wrong += usize::from(!memory.has(first + page, versions[page]));
            match random.u32(..8) {
                0 => {
                    let count = random.usize(1..=8).min(pages - page);
                    memory.remove(first + page, count);
                    versions[page..page + count].fill(None);
                }
                1..=5 => {
                    versions[page] = Some(outcome.steps as u64);
                    memory.write(first + page, outcome.steps as u64);
                }
                _ => {}
            }
            outcome.longest = outcome.longest.max(begin.elapsed());
        }
        let is_wrong = |page: &usize| !memory.has(first + page, versions[*page]);
        outcome.wrong += (0..pages).filter(is_wrong).count();
        outcome
    }
}
