//! Coroutines on stacks of a pool.

use super::pool::{GrowableStack, SlotWord};
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// A coroutine whose stack a sweep may take the dead pages of, while it waits by
/// [`StackPool::suspend`](super::StackPool::suspend).
///
/// A sweep sees it wait only from the end of [`StackCoroutine::resume`] to the next call, or to the
/// drop: never while code runs on its stack, be it a signal handler or a destructor. So the
/// resuming side keeps the word, on a stack of its own.
///
/// The drop of one that waits unwinds its stack; without the feature `unwind` of `corosensei` it
/// ends the process.
///
/// The child of a fork neither resumes nor drops one of its parent's, which a thread of the parent's may have been
/// sweeping: the end of that sweep would be awaited for ever.
pub struct StackCoroutine<Input, Yield, Return> {
    word: SlotWord,
    coroutine: Coroutine<Input, Yield, Return, GrowableStack>,
}

impl<Input: 'static, Yield: 'static, Return: 'static> StackCoroutine<Input, Yield, Return> {
    /// A coroutine that runs `work` on `stack` when it is first resumed.
    pub fn new<Work>(stack: GrowableStack, work: Work) -> Self
    where
        Work: FnOnce(&Yielder<Input, Yield>, Input) -> Return + 'static,
    {
        Self {
            word: stack.word(),
            coroutine: Coroutine::with_stack(stack, work),
        }
    }

    /// Runs the coroutine until it suspends itself or returns.
    ///
    /// # Panics
    /// Panics where it has returned already, and passes on a panic of its work.
    pub fn resume(&mut self, input: Input) -> CoroutineResult<Yield, Return> {
        self.word.get().resume();
        let result = self.coroutine.resume(input);
        self.word.get().wait();
        result
    }

    /// Returns true if it has returned.
    pub fn done(&self) -> bool {
        self.coroutine.done()
    }
}

impl<Input, Yield, Return> Drop for StackCoroutine<Input, Yield, Return> {
    fn drop(&mut self) {
        // The drop of the coroutine unwinds its stack.
        self.word.get().resume();
    }
}
