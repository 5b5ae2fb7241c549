//! PageRank by a linked program, ours beside kernel swap on anonymous memory.
//!
//! The program gives advice that its faults do not show: the shares, which are read at
//! random, are kept. The edges and all else are read in order, which the stream detector
//! recognises without advice. A prefetch of one block ahead was tried as well and costs more
//! than it brings: its thread reads pages that the readahead of the stream has in flight. The
//! kernel runs the same work without advice.

use super::child::{self, Done, Start};
use super::graph::{self, Graph};
use super::medium::Medium;
use super::{Benchmark, System};
use crate::prelude::*;
use selfpage::{Stretch, StretchError};
use std::ops::Range;

/// Rounds over all edges.
pub const ITERATIONS: u64 = 10;
/// The part of its rank that a vertex passes on: the usual one.
const DAMPING: f64 = 0.85;

/// What a process that ranks is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PagerankPlan {
    /// Which memory.
    pub memory: MemoryKind,
    /// Edges.
    pub edges: u64,
    /// Bytes of frames, for a domain of its own.
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
pub fn serve(plan: &PagerankPlan) -> Result<()> {
    let layout = graph::layout(plan.edges);
    let memory = WorkerMemory::new(&plan.memory, (layout.bytes / PAGE) as u64, plan.frames)?;
    ready()?;
    // SAFETY: the memory has that many bytes, is zero, and is this function's alone.
    let mut graph = unsafe { Graph::generate(memory.start(), &layout) };
    let hints = Hints(match &memory {
        WorkerMemory::Linked(stretch, _) => Some(stretch),
        WorkerMemory::Mapping(_) => None,
    });
    let begin = Instant::now();
    rank(&mut graph, &layout, &hints).map_err(|why| anyhow!("a hint was refused: {why}"))?;
    reply(&Ranked {
        seconds: begin.elapsed().as_secs_f64(),
        checksum: graph.checksum(),
    })
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

impl Benchmark for Pagerank {
    fn about(&self) -> (String, &'static str, Bound) {
        let [ours, kernels] = self.medium.names();
        (
            format!("PageRank linked, hints, {ours}"),
            kernels,
            Bound::AtMost(0.6),
        )
    }

    fn run(&self, env: &TestEnv, side: System) -> Result<Done> {
        let bytes = bytes(self.edges);
        let (edges, frames) = (self.edges, self.frames);
        let command = |memory| {
            WorkerPlan::Pagerank(PagerankPlan {
                memory,
                edges,
                frames,
            })
            .command()
        };
        let mut said = Vec::new();
        let mut collect = |chunk: &[u8]| said.extend_from_slice(chunk);
        let done = match side {
            System::Ours => {
                let (store, _guard) = self.medium.store(env, bytes)?;
                let command = command(MemoryKind::Upcall(store))?;
                child::run(command, Start::WhenReady(None), env.limit, &mut collect)?
            }
            System::Beside => {
                let command = || command(MemoryKind::Anonymous);
                let medium = self.medium;
                medium.run_in_cgroup(env, bytes, self.frames, command, &mut collect)?
            }
        };
        let ranked: Ranked =
            serde_json::from_slice(&said).map_err(|e| anyhow!("its figures: {e}"))?;
        Ok(Done {
            elapsed: Duration::from_secs_f64(ranked.seconds),
            digest: ranked.checksum,
            ..done
        })
    }
}
