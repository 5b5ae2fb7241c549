//! PageRank by a linked program, ours beside kernel swap on anonymous memory.
//!
//! The program gives advice that its faults do not show: the shares, which are read at
//! random, are kept. The edges and all else are read in order, which the stream detector
//! recognises without advice. A prefetch of one block ahead was tried as well and costs more
//! than it brings: its thread reads pages that the readahead of the stream has in flight. The
//! kernel runs the same work without advice.

use super::goal::Bound;
use super::graph::{self, Graph};
use super::ground::{Grounds, Medium};
use super::launch::{self, Done, Start};
use super::{Case, Side};
use crate::ExperimentError;
use crate::contents::PAGE;
use crate::memory::{Kind, Memory};
use crate::worker::READY;
use selfpage::{Stretch, StretchError};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Rounds over all edges.
pub const ITERATIONS: u64 = 10;
/// The part of its rank that a vertex passes on: the usual one.
const DAMPING: f64 = 0.85;
/// The options of a process that ranks.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// Which memory.
    #[arg(long)]
    pub memory: Kind,
    /// Edges.
    #[arg(long)]
    pub edges: u64,
    /// Bytes of frames, for a domain of its own.
    #[arg(long)]
    pub frames: u64,
}

/// What it prints.
#[derive(Debug, Serialize, Deserialize)]
struct Ranked {
    seconds: f64,
    checksum: u64,
}

/// Bytes of all arrays.
pub fn bytes(edges: u64) -> u64 {
    graph::layout(edges).bytes as u64
}

/// The main function of a process that ranks.
pub fn serve(plan: &Plan) -> Result<(), ExperimentError> {
    let layout = graph::layout(plan.edges);
    let memory = Memory::new(&plan.memory, (layout.bytes / PAGE) as u64, plan.frames)?;
    println!("{READY}");
    let mut word = String::new();
    let _ = std::io::stdin().lock().read_line(&mut word);
    // SAFETY: the memory has that many bytes, is zero, and is this function's alone.
    let mut graph = unsafe { Graph::generate(memory.start(), &layout) };
    let hints = Hints(match &memory {
        Memory::Linked(stretch, _) => Some(stretch),
        Memory::Mapping(_) => None,
    });
    let begin = Instant::now();
    rank(&mut graph, &layout, &hints)
        .map_err(|why| ExperimentError::Worker(format!("a hint was refused: {why}")))?;
    let ranked = Ranked {
        seconds: begin.elapsed().as_secs_f64(),
        checksum: graph.checksum(),
    };
    let line =
        serde_json::to_string(&ranked).map_err(|e| ExperimentError::Worker(e.to_string()))?;
    println!("{line}");
    Ok(())
}

/// The program's advice about its memory, in an arm whose pager takes advice.
struct Hints<'a>(Option<&'a Stretch>);

impl Hints<'_> {
    /// These bytes are used at random until the answer is dropped.
    fn keep(&self, bytes: Range<usize>) -> Result<Option<selfpage::Pin<'_>>, StretchError> {
        self.0.map(|stretch| stretch.pin(bytes)).transpose()
    }
}

fn rank(
    graph: &mut Graph<'_>,
    layout: &graph::Layout,
    hints: &Hints<'_>,
) -> Result<(), StretchError> {
    let vertices = layout.vertices;
    let _kept = hints.keep(layout.shares.clone())?;
    let base = (1.0 - DAMPING) / vertices as f64;
    for _ in 0..ITERATIONS {
        for vertex in 0..vertices {
            graph.ranks[vertex] = base + DAMPING * graph.gathered(vertex);
        }
        (0..vertices).for_each(|vertex| graph.share(vertex));
    }
    Ok(())
}

/// A graph's size, memory, and where its pages go.
pub struct Pagerank {
    /// Edges.
    pub edges: u64,
    /// Bytes of memory.
    pub frames: u64,
    /// Where pages go.
    pub medium: Medium,
}

impl Case for Pagerank {
    fn about(&self) -> (String, String, Bound) {
        let [ours, kernels] = self.medium.names();
        (
            format!("PageRank linked, hints, {ours}"),
            kernels.into(),
            Bound::AtMost(0.6),
        )
    }

    fn run(&self, grounds: &Grounds<'_>, side: Side) -> Result<Done, ExperimentError> {
        let bytes = bytes(self.edges);
        let command = |memory: &str| {
            let mut command = grounds.base.myself.command("pagerank");
            command.args(["--edges", &self.edges.to_string()]);
            command.args(["--frames", &self.frames.to_string()]);
            command.args(["--memory", memory]);
            command
        };
        let mut said = Vec::new();
        let mut hear = |chunk: &[u8]| said.extend_from_slice(chunk);
        let done = match side {
            Side::Ours => {
                let ours = grounds.ours(self.medium, bytes)?;
                let command = command(&format!("upcall:{}", ours.store));
                launch::run(command, Start::WhenReady(None), grounds.limit, &mut hear)?
            }
            Side::Beside => {
                let mut command = || command("anonymous");
                grounds.in_cgroup(self.medium, bytes, self.frames, &mut command, &mut hear)?
            }
        };
        let ranked: Ranked = serde_json::from_slice(&said)
            .map_err(|e| ExperimentError::Worker(format!("its figures: {e}")))?;
        Ok(Done {
            elapsed: Duration::from_secs_f64(ranked.seconds),
            digest: ranked.checksum,
            ..done
        })
    }
}
