//! This process's connection to the system domain.

use ::link::client::SupervisorPort;
use ::link::handshake::RawDomainId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static PORT: OnceLock<SupervisorPort> = OnceLock::new();
static DOMAIN: AtomicU32 = AtomicU32::new(0);
static ALLOW_UNPAGED: AtomicBool = AtomicBool::new(false);
static PACED: AtomicBool = AtomicBool::new(false);

/// Stores the port, once, in the constructor.
pub fn keep(port: SupervisorPort) {
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

/// Sets the process's domain.
pub fn set_domain(domain: RawDomainId) {
    DOMAIN.store(domain, Ordering::Release);
}

/// Returns true if programs that cannot be paged may run unpaged.
pub fn allow_unpaged() -> bool {
    ALLOW_UNPAGED.load(Ordering::Acquire)
}

/// Returns true if the tree may have fault limits.
pub fn is_paced() -> bool {
    PACED.load(Ordering::Acquire)
}

/// Sets it, from the welcome message.
pub fn set_paced(paced: bool) {
    PACED.store(paced, Ordering::Release);
}

/// Sets it, from the welcome message.
pub fn set_allow_unpaged(allow: bool) {
    ALLOW_UNPAGED.store(allow, Ordering::Release);
}
