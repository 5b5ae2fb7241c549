//! A library to preload that comes in and pages nothing: what the tests of `selfpage run`
//! use in place of the real one, so that they test `run` alone.
//!
//! It counts one fault, publishes nothing else, and acknowledges *careful* when its
//! environment says so (JOINER_ACK). With JOINER_REPORT it says what it was told.

use link::client::{Joined, SupervisorPort};
use link::handshake::{ChildMessage, Hello, ProgramPlace};
use std::sync::atomic::Ordering;
use wired::Counter;

unsafe extern "C" {
    static environ: *const *const std::ffi::c_char;
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = come_in;

extern "C" fn come_in() {
    // SAFETY: the C library has set the environment up by now.
    let Ok(port) = (unsafe { SupervisorPort::from_environ(environ) }) else {
        return;
    };
    match port.join(Hello::Exec {
        program: ProgramPlace::default(),
    }) {
        Ok(joined) => stay(joined),
        Err(why) => {
            let _ = port.send_message(ChildMessage::Notice(why.to_string().as_bytes()));
        }
    }
}

fn stay(joined: Joined) {
    let slot = joined.welcome.slot();
    let Ok(stats_page) = joined.map_stats_page() else {
        return;
    };
    stats_page.block(slot).add(Counter::Faults, 1);
    if std::env::var_os("JOINER_REPORT").is_some() {
        let text = format!(
            "slot {slot}, {} frames, careful {}",
            joined.welcome.frames,
            stats_page.careful().load(Ordering::SeqCst)
        );
        let _ = joined
            .connection
            .send(ChildMessage::Notice(text.as_bytes()));
    }
    if std::env::var_os("JOINER_ACK").is_some() {
        std::thread::spawn(move || {
            loop {
                let careful = stats_page.careful().load(Ordering::SeqCst);
                stats_page
                    .block(slot)
                    .careful_seen()
                    .store(careful, Ordering::SeqCst);
                wired::futex::wait(
                    stats_page.careful(),
                    careful,
                    Some(std::time::Duration::from_millis(50)),
                );
            }
        });
    }
    // Stays open until the image ends.
    std::mem::forget(joined);
}
