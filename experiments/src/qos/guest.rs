//! One of two programs beside each other, in a process of its own: the victim, whose
//! accesses are timed, or the neighbour, which pages as hard as it can.
//!
//! It is told by lines what to do next, so that the same process, with the same pages in
//! memory, is measured alone and beside the other.
//!
//! Rule: a latency is from the time at which the access was *due*. The times are fixed
//! beforehand, so that an access which had to wait for the one before it counts its waiting,
//! and a program that is held up is not spared the accesses it did not come to.

use super::backing::{Backing, Housed};
use crate::ExperimentError;
use crate::contents::{PAGE, PageAt, mix};
use crate::error::while_doing;
use crate::memory::{Kind, Memory};
use crate::worker::READY;
use hdrhistogram::Histogram;
use selfpage::{Paged, Stretch};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{BufRead, Write};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The version of every page before anything changed it.
const FIRST: u8 = 1;

/// How long before an access is due the thread stops sleeping: waking takes that long.
const AWAKE: Duration = Duration::from_micros(100);

/// How many times as long as its schedule an open phase may take. What is not done by then
/// has waited for as long as that, at least.
const PATIENCE: u32 = 2;

/// The longest latency that is told from longer ones.
const MOST: Duration = Duration::from_secs(600);

/// What a guest is.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Which memory, where it is not a domain's of its own.
    #[arg(long, default_value = "anonymous")]
    pub memory: Kind,
    /// MiB of it.
    #[arg(long)]
    pub mib: u64,
    /// Where the pages of a domain of its own go.
    #[command(flatten)]
    pub backing: Backing,
}

/// What a guest is told to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Writes every page; answers [`Done`].
    Fill,
    /// Reads pages at random, one after the other; answers [`Done`].
    Closed(Duration),
    /// Reads pages at random when they are due, so many a second; answers [`Latency`].
    Open {
        /// For so long.
        during: Duration,
        /// Accesses a second.
        rate: f64,
        /// Makes the times and the pages.
        seed: u64,
    },
    /// Reads pages at random by so many threads, until [`Order::Rest`].
    Roam(u64),
    /// Changes pages at random by so many threads, until [`Order::Rest`].
    Churn(u64),
    /// Ends either; answers [`Done`].
    Rest,
    /// Answers how often frames were asked back of it, by a number; also while it works.
    Asked,
    /// So often: touches so many pages, and drops them again; answers [`Claims`].
    Claim {
        /// How often.
        times: u64,
        /// Pages.
        pages: u64,
        /// More than this is late.
        most: Duration,
    },
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fill => f.write_str("fill"),
            Self::Closed(during) => write!(f, "closed {}", during.as_millis()),
            Self::Open { during, rate, seed } => {
                write!(f, "open {} {rate} {seed}", during.as_millis())
            }
            Self::Roam(threads) => write!(f, "roam {threads}"),
            Self::Churn(threads) => write!(f, "churn {threads}"),
            Self::Rest => f.write_str("rest"),
            Self::Asked => f.write_str("asked"),
            Self::Claim { times, pages, most } => {
                write!(f, "claim {times} {pages} {}", most.as_millis())
            }
        }
    }
}

impl FromStr for Order {
    type Err = ExperimentError;

    fn from_str(text: &str) -> Result<Self, ExperimentError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = || ExperimentError::Worker(format!("was told {text:?}"));
        let number = |word: &str| word.parse().map_err(|_| wrong());
        let time = |word: &str| number(word).map(Duration::from_millis);
        Ok(match words.as_slice() {
            ["fill"] => Self::Fill,
            ["closed", during] => Self::Closed(time(during)?),
            ["open", during, rate, seed] => Self::Open {
                during: time(during)?,
                rate: rate.parse().map_err(|_| wrong())?,
                seed: number(seed)?,
            },
            ["roam", threads] => Self::Roam(number(threads)?.max(1)),
            ["churn", threads] => Self::Churn(number(threads)?.max(1)),
            ["rest"] => Self::Rest,
            ["asked"] => Self::Asked,
            ["claim", times, pages, most] => Self::Claim {
                times: number(times)?,
                pages: number(pages)?,
                most: time(most)?,
            },
            _ => return Err(wrong()),
        })
    }
}

/// Accesses, and the time they took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Accesses.
    pub accesses: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Done {
    /// Accesses a second.
    pub fn rate(&self) -> f64 {
        self.accesses as f64 / (self.ns as f64 / 1e9)
    }
}

/// What claims came to: the time until all pages of one were there.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Claims {
    /// Of each claim.
    pub latency: Latency,
    /// Those that took longer than they may.
    pub late: u64,
}

/// What an open phase came to; times from when each access was due.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Accesses that were due.
    pub due: u64,
    /// Those that were done before the phase was given up.
    pub done: u64,
    /// Nanoseconds that half of the accesses took at most.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// All.
    pub most_ns: u64,
}

impl Latency {
    /// What was recorded of `due` accesses of which so many were done.
    pub fn of(times: &Histogram<u64>, due: u64, done: u64) -> Self {
        Self {
            due,
            done,
            p50_ns: times.value_at_quantile(0.5),
            p99_ns: times.value_at_quantile(0.99),
            p999_ns: times.value_at_quantile(0.999),
            most_ns: times.max(),
        }
    }
}

/// Room for latencies in nanoseconds.
pub fn latencies() -> Result<Histogram<u64>, ExperimentError> {
    Histogram::new_with_max(MOST.as_nanos() as u64, 3)
        .map_err(|why| ExperimentError::Worker(format!("has no histogram: {why}")))
}

/// The life of a guest.
pub fn serve(plan: &Plan) -> Result<(), ExperimentError> {
    let pages = (plan.mib << 20) / PAGE as u64;
    let place = Place::new(plan, pages)?;
    let guest = Guest {
        base: place.start().addr(),
        pages,
        resting: AtomicBool::new(false),
        failed: Mutex::new(None),
    };
    println!("{READY}");
    let mut orders = std::io::stdin().lock().lines().map_while(Result::ok);
    while let Some(line) = orders.next() {
        match line.parse()? {
            Order::Fill => answer(&guest.fill())?,
            Order::Closed(during) => answer(&guest.closed(during)?)?,
            Order::Open { during, rate, seed } => answer(&guest.open(during, rate, seed)?)?,
            Order::Roam(threads) => {
                answer(&guest.work(threads, false, || until_rest(&mut orders, &place))?)?
            }
            Order::Churn(threads) => {
                answer(&guest.work(threads, true, || until_rest(&mut orders, &place))?)?
            }
            Order::Asked => answer(&place.asked())?,
            Order::Claim { times, pages, most } => {
                answer(&guest.claim(place.stretch()?, times, pages, most)?)?;
            }
            Order::Rest => return Err(ExperimentError::Worker("was told to rest at rest".into())),
        }
    }
    Ok(())
}

/// The next order can only be to rest, or to answer meanwhile, or nobody is there any more.
fn until_rest(orders: &mut impl Iterator<Item = String>, place: &Place) {
    let asks = |line: &String| matches!(line.parse(), Ok(Order::Asked));
    while orders.next().as_ref().is_some_and(asks) && answer(&place.asked()).is_ok() {}
}

/// Where a guest's pages are. Dropped from the top.
enum Place {
    Memory(Memory),
    Stretch(
        Stretch,
        #[allow(dead_code, reason = "kept for its end")] Housed,
    ),
}

impl Place {
    fn new(plan: &Plan, pages: u64) -> Result<Self, ExperimentError> {
        if !plan.backing.is_some() {
            return Ok(Self::Memory(Memory::new(&plan.memory, pages, 0)?));
        }
        let failed = |why: selfpage::StretchError| ExperimentError::Worker(why.to_string());
        let housed = plan.backing.domain()?;
        let stretch = housed
            .domain
            .allocate(pages as usize * PAGE)
            .map_err(failed)?;
        stretch.bind(Paged).map_err(failed)?;
        Ok(Self::Stretch(stretch, housed))
    }

    fn stretch(&self) -> Result<&Stretch, ExperimentError> {
        match self {
            Self::Stretch(stretch, _) => Ok(stretch),
            Self::Memory(_) => Err(ExperimentError::Worker("has no stretch".into())),
        }
    }

    /// How often frames were asked back.
    fn asked(&self) -> u64 {
        match self {
            Self::Stretch(_, housed) => housed.asked(),
            Self::Memory(_) => 0,
        }
    }

    fn start(&self) -> *mut u8 {
        match self {
            Self::Memory(memory) => memory.start(),
            Self::Stretch(stretch, _) => stretch.as_ptr(),
        }
    }
}

fn answer(value: &impl Serialize) -> Result<(), ExperimentError> {
    let line = serde_json::to_string(value).map_err(|e| ExperimentError::Worker(e.to_string()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(while_doing("answer"))
}

struct Guest {
    base: usize,
    pages: u64,
    resting: AtomicBool,
    failed: Mutex<Option<ExperimentError>>,
}

impl Guest {
    fn page(&self, number: u64) -> PageAt {
        // SAFETY: below the number of pages of memory that outlives the guest; two threads
        // never have the same page, see `churn`.
        unsafe { PageAt::new(std::ptr::with_exposed_provenance_mut(self.base), number) }
    }

    fn fill(&self) -> Done {
        let began = Instant::now();
        (0..self.pages).for_each(|page| self.page(page).write(FIRST));
        done(self.pages, began)
    }

    fn closed(&self, during: Duration) -> Result<Done, ExperimentError> {
        let began = Instant::now();
        let mut accesses = 0;
        while began.elapsed() < during {
            self.page(mix(accesses) % self.pages).probe(FIRST)?;
            accesses += 1;
        }
        Ok(done(accesses, began))
    }

    fn open(&self, during: Duration, rate: f64, seed: u64) -> Result<Latency, ExperimentError> {
        let schedule = schedule(during, rate, seed);
        let mut times = latencies()?;
        let began = Instant::now();
        let mut done = 0;
        for (k, due) in schedule.iter().enumerate() {
            if began.elapsed() < during * PATIENCE {
                wait_until(began + *due);
                let page = mix(mix(seed) ^ k as u64) % self.pages;
                self.page(page).probe(FIRST)?;
                done += 1;
            }
            let late = began.elapsed().saturating_sub(*due);
            times.saturating_record(late.as_nanos() as u64);
        }
        Ok(Latency::of(&times, schedule.len() as u64, done))
    }

    /// Each thread has a part of the pages of its own.
    fn work(
        &self,
        threads: u64,
        changes: bool,
        until: impl FnOnce(),
    ) -> Result<Done, ExperimentError> {
        self.resting.store(false, Ordering::Relaxed);
        let began = Instant::now();
        let part = self.pages / threads;
        let accesses = std::thread::scope(|scope| {
            let work = |thread| {
                move || match changes {
                    true => self.change(thread * part, part),
                    false => self.read(thread * part, part),
                }
            };
            let all: Vec<_> = (0..threads).map(|t| scope.spawn(work(t))).collect();
            until();
            self.resting.store(true, Ordering::Relaxed);
            all.into_iter()
                .filter_map(|thread| thread.join().ok())
                .sum()
        });
        let failure = self.failed.lock().ok().and_then(|mut failed| failed.take());
        match failure {
            Some(failure) => Err(failure),
            None => Ok(done(accesses, began)),
        }
    }

    fn fail(&self, wrong: ExperimentError) {
        if let Ok(mut failed) = self.failed.lock() {
            *failed = Some(wrong);
        }
    }

    fn read(&self, first: u64, pages: u64) -> u64 {
        let mut accesses = 0;
        while !self.resting.load(Ordering::Relaxed) {
            let page = first + mix(mix(first) ^ accesses) % pages;
            if let Err(wrong) = self.page(page).probe(FIRST) {
                self.fail(wrong);
                break;
            }
            accesses += 1;
        }
        accesses
    }

    fn claim(
        &self,
        stretch: &Stretch,
        times: u64,
        pages: u64,
        most: Duration,
    ) -> Result<Claims, ExperimentError> {
        let pages = pages.min(self.pages);
        let (mut took, mut late) = (latencies()?, 0);
        for _ in 0..times {
            let began = Instant::now();
            (0..pages).for_each(|page| self.page(page).advance(FIRST));
            let time = began.elapsed();
            took.saturating_record(time.as_nanos() as u64);
            late += u64::from(time > most);
            stretch
                .discard(0..pages as usize)
                .map_err(|why| ExperimentError::Worker(why.to_string()))?;
        }
        Ok(Claims {
            latency: Latency::of(&took, times, times),
            late,
        })
    }

    fn change(&self, first: u64, pages: u64) -> u64 {
        let mut versions = vec![FIRST; pages as usize];
        let mut accesses = 0;
        while !self.resting.load(Ordering::Relaxed) {
            let at = mix(mix(first) ^ accesses) % pages;
            let version = &mut versions[at as usize];
            let page = self.page(first + at);
            if let Err(wrong) = page.probe(*version) {
                self.fail(wrong);
                break;
            }
            *version = version.wrapping_add(1);
            page.advance(*version);
            accesses += 1;
        }
        // The next churn finds the pages as the first did.
        for (at, _) in versions.iter().enumerate().filter(|(_, v)| **v != FIRST) {
            self.page(first + at as u64).advance(FIRST);
        }
        accesses
    }
}

fn done(accesses: u64, began: Instant) -> Done {
    Done {
        accesses,
        ns: began.elapsed().as_nanos() as u64,
    }
}

/// When accesses are due that come independently of each other, so many a second.
fn schedule(during: Duration, rate: f64, seed: u64) -> Vec<Duration> {
    let mut at = 0.0;
    let mut due = Vec::with_capacity((during.as_secs_f64() * rate * 1.2) as usize);
    for k in 0u64.. {
        // Never 0, whose logarithm is not a time.
        let part = ((mix(mix(seed) ^ !k) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        at -= part.ln() / rate;
        if at >= during.as_secs_f64() {
            break;
        }
        due.push(Duration::from_secs_f64(at));
    }
    due
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left > AWAKE {
        std::thread::sleep(left - AWAKE);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(memory: &mut Vec<u64>, pages: u64) -> Guest {
        memory.resize(pages as usize * PAGE / 8, 0);
        let guest = Guest {
            base: memory.as_mut_ptr().expose_provenance(),
            pages,
            resting: AtomicBool::new(false),
            failed: Mutex::new(None),
        };
        guest.fill();
        guest
    }

    #[test]
    fn an_order_is_read_as_it_is_told() {
        let open = Order::Open {
            during: Duration::from_millis(1500),
            rate: 2000.5,
            seed: 7,
        };
        let closed = Order::Closed(Duration::from_secs(2));
        let claim = Order::Claim {
            times: 3,
            pages: 256,
            most: Duration::from_millis(150),
        };
        let others = [Order::Roam(1), Order::Churn(4), Order::Rest, Order::Asked];
        for order in [Order::Fill, closed, open, claim].into_iter().chain(others) {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        assert!("dance".parse::<Order>().is_err());
    }

    #[test]
    fn accesses_are_due_at_the_same_times_whatever_becomes_of_them() {
        let second = Duration::from_secs(1);
        let due = schedule(second, 5000.0, 3);
        assert_eq!(due, schedule(second, 5000.0, 3));
        assert!(due.is_sorted() && due.last().is_some_and(|last| *last < second));
        assert!((4700..5300).contains(&due.len()), "{}", due.len());
    }

    #[test]
    fn what_is_not_done_in_time_counts_as_having_waited() {
        let mut memory = Vec::new();
        let guest = guest(&mut memory, 8);
        // Far more than can be done.
        let open = guest.open(Duration::from_millis(1), 1e9, 1).unwrap();
        assert!(open.done < open.due);
        assert!(
            open.most_ns > 1_000_000,
            "given up after twice the schedule"
        );
        assert!(open.p50_ns <= open.p99_ns && open.p999_ns <= open.most_ns);
    }

    #[test]
    fn a_neighbour_leaves_its_pages_as_it_found_them() {
        let mut memory = Vec::new();
        let guest = guest(&mut memory, 16);
        let pause = || std::thread::sleep(Duration::from_millis(20));
        assert!(guest.work(2, false, pause).unwrap().accesses > 0);
        assert!(guest.work(2, true, pause).unwrap().accesses > 0);
        assert!((0..16).all(|page| guest.page(page).check(FIRST).is_ok()));
        assert!(guest.closed(Duration::from_millis(2)).unwrap().rate() > 0.0);
    }
}
