//! Threads on stacks of a pool.

use super::pool::{GrowableStack, StackPool};
use crate::error::SpaceError;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a thread's alternate signal stack, on which an overflow is handled.
const SIGNAL_STACK: usize = 64 << 10;

/// A thread whose stack is of a pool. Dropping it without [`StackThread::join`] waits for its end,
/// too: the stack is needed as long. A drop by the thread itself, or by one that the thread waits
/// for, returns at once, and the pool loses the stack.
pub struct StackThread<T> {
    thread: Option<libc::pthread_t>,
    result: Arc<Mutex<Option<T>>>,
    stack: Option<GrowableStack>,
}

/// Why a thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StackThreadError {
    /// No stack.
    #[error(transparent)]
    Stack(#[from] SpaceError),
    /// The C library refused.
    #[error("starting a thread on a stack of {bytes} bytes: {error}")]
    Start {
        /// Bytes of the stack.
        bytes: usize,
        /// The error.
        error: std::io::Error,
    },
}

type Work = Box<dyn FnOnce() + Send>;

extern "C" fn run(work: *mut c_void) -> *mut c_void {
    // SAFETY: a box that `spawn` leaked for this thread.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    let mut memory = vec![0u8; SIGNAL_STACK];
    let mut signals = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: SIGNAL_STACK,
    };
    // SAFETY: the memory outlives its use as a signal stack.
    unsafe { libc::sigaltstack(&signals, std::ptr::null_mut()) };
    work();
    signals.ss_flags = libc::SS_DISABLE;
    // SAFETY: as above.
    unsafe { libc::sigaltstack(&signals, std::ptr::null_mut()) };
    std::ptr::null_mut()
}

impl<T: Send + 'static> StackThread<T> {
    /// Starts a thread on a stack of the pool, which has 64 KiB at least: the C library keeps the
    /// thread's own data at its top. A panic of `work` ends the process, and so does `pthread_exit`
    /// or `pthread_cancel`: frames of Rust are not to be unwound by them.
    pub fn spawn(
        pool: &Arc<StackPool>,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, StackThreadError> {
        let stack = pool.take(name)?;
        let range = stack.range();
        let result = Arc::new(Mutex::new(None));
        let into = result.clone();
        let work: Work = Box::new(move || {
            let value = work();
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        let work = Box::into_raw(Box::new(work)).cast::<c_void>();
        let mut thread = 0;
        // SAFETY: an attribute is made, set and destroyed; the stack is unused, and given back
        // after the thread was joined.
        let code = unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            let base = std::ptr::with_exposed_provenance_mut(range.start);
            let mut code = libc::pthread_attr_setstack(&mut attributes, base, range.len());
            if code == 0 {
                code = libc::pthread_create(&mut thread, &attributes, run, work);
            }
            libc::pthread_attr_destroy(&mut attributes);
            code
        };
        if code != 0 {
            // SAFETY: no thread has it.
            drop(unsafe { Box::from_raw(work.cast::<Work>()) });
            return Err(StackThreadError::Start {
                bytes: range.len(),
                error: std::io::Error::from_raw_os_error(code),
            });
        }
        Ok(Self {
            thread: Some(thread),
            result,
            stack: Some(stack),
        })
    }

    /// The thread's stack.
    pub fn stack(&self) -> Option<&GrowableStack> {
        self.stack.as_ref()
    }

    /// Waits for the thread's end, and returns the result of its work. Called by the thread itself, or by one that the
    /// thread waits for, it panics.
    pub fn join(mut self) -> T {
        self.wait();
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take().expect("a thread that ends has a result")
    }
}

impl<T> StackThread<T> {
    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // SAFETY: joined once.
            if unsafe { libc::pthread_join(thread, std::ptr::null_mut()) } != 0 {
                // It is this thread, or waits for this one: it runs on the stack until it ends.
                std::mem::forget(self.stack.take());
                // SAFETY: neither joined nor detached.
                unsafe { libc::pthread_detach(thread) };
            }
        }
    }
}

impl<T> Drop for StackThread<T> {
    fn drop(&mut self) {
        self.wait();
        self.stack = None;
    }
}
