//! A graph made up from numbers alone, as arrays in memory that is given: for each vertex
//! where its incoming edges begin, for each edge where it comes from, for each vertex how
//! many leave it, its rank, and the share of it that each edge carries.
//!
//! Half of all edges come from an eighth of the vertices, strewn over all of them, as links
//! do: no page of shares is used much more than another.

use crate::page_pattern::{PAGE, mix};
use std::ops::Range;

/// Edges for each vertex.
const DEGREE: u64 = 5;
/// Prime, so that multiplying by it modulo any smaller number of vertices strews them.
const STREW: u64 = 2_147_483_647;

/// Where the arrays lie, in bytes from the first. Each begins with a page.
#[derive(Debug)]
pub struct Layout {
    /// Vertices.
    pub vertices: usize,
    /// Edges.
    pub edge_count: usize,
    /// For each vertex and one more, the number of its first edge: `u32`.
    pub offsets: Range<usize>,
    /// For each edge, the vertex it comes from: `u32`.
    pub edges: Range<usize>,
    /// For each vertex, the edges that leave it: `u32`.
    pub degrees: Range<usize>,
    /// For each vertex, its rank: `f64`.
    pub ranks: Range<usize>,
    /// For each vertex, what each edge carries: `f64`.
    pub shares: Range<usize>,
    /// Bytes of all, in whole pages.
    pub bytes: usize,
}

/// For so many edges.
pub fn layout(edges: u64) -> Layout {
    let vertices = (edges / DEGREE) as usize;
    let mut bytes = 0;
    let mut array = |count: usize, each: usize| {
        let start = bytes;
        bytes += (count * each).next_multiple_of(PAGE);
        start..start + count * each
    };
    Layout {
        vertices,
        edge_count: edges as usize,
        offsets: array(vertices + 1, 4),
        edges: array(edges as usize, 4),
        degrees: array(vertices, 4),
        ranks: array(vertices, 8),
        shares: array(vertices, 8),
        bytes,
    }
}

/// The arrays.
pub struct Graph<'a> {
    offsets: &'a mut [u32],
    edges: &'a mut [u32],
    degrees: &'a mut [u32],
    /// Ranks so far.
    pub ranks: &'a mut [f64],
    shares: &'a mut [f64],
}

impl Graph<'_> {
    /// Makes a graph up, every vertex of the same rank.
    ///
    /// # Safety
    /// `base` begins a page of `layout.bytes` bytes of zeroed memory that only the
    /// graph uses while it lives.
    pub unsafe fn generate(base: *mut u8, layout: &Layout) -> Self {
        // SAFETY: each range lies in the memory, apart from the others and aligned to
        // pages; zeros are numbers; the rest is the caller's promise.
        let mut graph = unsafe {
            Self {
                offsets: array(base, &layout.offsets),
                edges: array(base, &layout.edges),
                degrees: array(base, &layout.degrees),
                ranks: array(base, &layout.ranks),
                shares: array(base, &layout.shares),
            }
        };
        graph.fill(layout);
        graph
    }

    fn fill(&mut self, layout: &Layout) {
        let (vertices, edges) = (layout.vertices, layout.edge_count);
        let mut next = 0;
        for vertex in 0..vertices {
            self.offsets[vertex] = next as u32;
            let wanted = match vertex + 1 == vertices {
                true => edges,
                false => (mix(vertex as u64) % (2 * DEGREE + 1)) as usize,
            };
            let end = (next + wanted).min(edges);
            for edge in next..end {
                let source = source(edge as u64, vertices as u64);
                self.edges[edge] = source as u32;
                self.degrees[source] += 1;
            }
            next = end;
        }
        self.offsets[vertices] = next as u32;
        for vertex in 0..vertices {
            self.ranks[vertex] = 1.0 / vertices as f64;
            self.share(vertex);
        }
    }

    /// The numbers of the edges that come to these vertices.
    pub fn edges_of(&self, vertices: Range<usize>) -> Range<usize> {
        self.offsets[vertices.start] as usize..self.offsets[vertices.end] as usize
    }

    /// What comes to a vertex by its edges.
    pub fn gathered(&self, vertex: usize) -> f64 {
        let edges = &self.edges[self.edges_of(vertex..vertex + 1)];
        edges.iter().map(|from| self.shares[*from as usize]).sum()
    }

    /// Divides a vertex's rank among the edges that leave it.
    pub fn share(&mut self, vertex: usize) {
        self.shares[vertex] = self.ranks[vertex] / f64::from(self.degrees[vertex].max(1));
    }

    /// The same for the same ranks, bit for bit.
    pub fn checksum(&self) -> u64 {
        self.ranks
            .iter()
            .fold(0, |sum, rank| mix(sum ^ rank.to_bits()))
    }
}

/// # Safety
/// The bytes lie in memory that outlives the slice, hold values of `T`, begin where one may,
/// and are in no other slice.
unsafe fn array<'a, T>(base: *mut u8, bytes: &Range<usize>) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe {
        std::slice::from_raw_parts_mut(base.add(bytes.start).cast(), bytes.len() / size_of::<T>())
    }
}

/// Where an edge comes from: the cube of an even distribution, strewn.
fn source(edge: u64, vertices: u64) -> usize {
    let even = mix(edge ^ 1 << 40) as f64 / u64::MAX as f64;
    let rank = (even.powi(3) * vertices as f64) as u64;
    (rank.min(vertices - 1) * STREW % vertices) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_belongs_to_one_vertex_and_leaves_another() {
        let layout = layout(10_000);
        let mut memory = vec![0u64; layout.bytes / 8];
        // SAFETY: the vector has the bytes, aligned as the widest number is.
        let graph = unsafe { Graph::generate(memory.as_mut_ptr().cast(), &layout) };
        assert_eq!(graph.edges_of(0..layout.vertices), 0..10_000);
        assert!((0..layout.vertices).all(|v| graph.edges_of(v..v + 1).len() < 2_000));
        assert_eq!(graph.degrees.iter().sum::<u32>(), 10_000);
        let (first, second) = (graph.checksum(), {
            graph.ranks[3] = 0.5;
            graph.checksum()
        });
        assert_ne!(first, second);
    }
}
