//! The client that reads a file (Nemesis, section 7.3), in a process of its own: it "performs
//! significant pipelining of its transaction requests (i.e. it trades off additional buffer
//! space against disk latency)", and "for homogeneity, its transactions are each the same
//! size as a page".
//!
//! With a pause it is the opposite: a client that sends one request now and then; its latency
//! is measured from the submission.

use super::progress::{ProgressCounter, ReportedRun};
use super::subject::{Latency, latencies};
use crate::prelude::*;
use crate::worker;
use std::fs::File;
use tenant::file::ReservedFile;

/// What the client does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderPlan {
    /// The file, of whole pages.
    pub file: PathBuf,
    /// The daemon's socket.
    pub system: PathBuf,
    /// The client's name there.
    pub name: String,
    /// Disk time there, as `--disk` takes it.
    pub disk: String,
    /// Requests outstanding at once.
    pub depth: usize,
    /// Reads pages at random, not in order.
    pub random: bool,
    /// Time between an answer and the next request, one at a time; its latencies are
    /// sent at the end.
    pub pause: Option<Duration>,
    /// How long.
    pub run: ReportedRun,
}

/// The main function of the client.
pub fn serve(plan: &ReaderPlan) -> Result<()> {
    let file = File::open(&plan.file).at("open", &plan.file)?;
    let disk = plan.disk.parse()?;
    let mut reading = Reading {
        file: ReservedFile::open(&plan.system, &plan.name, &file, disk, plan.depth, 1)?,
        random: plan.random,
        next: 0,
    };
    worker::ready()?;
    match plan.pause {
        None => plan.run.watch(|watched| reading.pipeline(watched))?,
        Some(pause) => {
            let during = Duration::from_secs_f64(plan.run.seconds);
            let latency = reading.now_and_then(during, pause)?;
            worker::reply(&latency)?;
        }
    }
    // The daemon reports the charged time only while the contract is active.
    worker::linger();
    Ok(())
}

struct Reading {
    file: ReservedFile,
    random: bool,
    next: u64,
}

impl Reading {
    fn begin(&mut self, slot: usize) {
        let pages = (self.file.size() / PAGE as u64).max(1);
        let page = match self.random {
            true => mix(self.next) % pages,
            false => self.next % pages,
        };
        self.next += 1;
        self.file.read(slot, page * PAGE as u64);
    }

    /// The number of a request that was answered with a page.
    fn answer(&mut self) -> Result<usize> {
        match self.file.wait() {
            Some(Ok(over)) if over.data.len() == PAGE => Ok(over.slot),
            Some(Ok(over)) => Err(anyhow!("was given {} bytes of a page", over.data.len())),
            Some(Err(why)) => Err(anyhow!(why)),
            None => Err(anyhow!("nothing is under way in the channel")),
        }
    }

    fn pipeline(&mut self, watched: &ProgressCounter) -> Result<()> {
        (0..self.file.depth()).for_each(|slot| self.begin(slot));
        while watched.processed(0) {
            let slot = self.answer()?;
            watched.processed(PAGE as u64);
            self.begin(slot);
        }
        Ok(())
    }

    fn now_and_then(&mut self, during: Duration, pause: Duration) -> Result<Latency> {
        let mut times = latencies()?;
        let began = Instant::now();
        while began.elapsed() < during {
            std::thread::sleep(pause);
            let asked = Instant::now();
            self.begin(0);
            self.answer()?;
            times.saturating_record(asked.elapsed().as_nanos() as u64);
        }
        Ok(Latency::of(&times, times.len(), times.len()))
    }
}
