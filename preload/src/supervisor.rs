//! This process's connection to the supervisor of its tree.

pub mod disk;

use link::client::SupervisorPort;
use link::handshake::{RawDomainId, Welcome};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static PORT: OnceLock<SupervisorPort> = OnceLock::new();
static DOMAIN: AtomicU32 = AtomicU32::new(0);
static ALLOW_UNPAGED: AtomicBool = AtomicBool::new(false);

/// Stores the port, once, in the constructor.
pub fn set_port(port: SupervisorPort) {
    let _ = PORT.set(port);
}

/// The port; none in plain mode.
pub fn port() -> Option<&'static SupervisorPort> {
    PORT.get()
}

/// The descriptor the program may not close.
pub fn guarded_fd() -> Option<i32> {
    port()?.raw_fd()
}

/// This process's domain in the ledger.
pub fn domain() -> RawDomainId {
    DOMAIN.load(Ordering::Acquire)
}

/// Stores what the supervisor sent when the process joined.
pub fn on_welcome(welcome: &Welcome) {
    DOMAIN.store(welcome.domain, Ordering::Release);
    ALLOW_UNPAGED.store(welcome.options.allow_unpaged, Ordering::Release);
}

/// Returns true if programs that cannot be paged may run unpaged.
pub fn allows_unpaged() -> bool {
    ALLOW_UNPAGED.load(Ordering::Acquire)
}
