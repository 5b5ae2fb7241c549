//! Completions of a channel until they are fetched.

use crate::traits::{Completion, MAX_PENDING};
use std::collections::VecDeque;

/// Completions not yet fetched, with room for all that may be pending. It restarts at its beginning
/// whenever it is empty, so that it touches no more memory than it needs.
pub(crate) struct CompletionQueue(VecDeque<Completion>);

impl CompletionQueue {
    pub fn new() -> Self {
        Self(VecDeque::with_capacity(MAX_PENDING))
    }

    pub fn push(&mut self, completion: Completion) {
        debug_assert!(self.0.len() < MAX_PENDING);
        self.0.push_back(completion);
    }

    pub fn pop(&mut self) -> Option<Completion> {
        let completion = self.0.pop_front();
        if self.0.is_empty() {
            self.0.clear();
        }
        completion
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
