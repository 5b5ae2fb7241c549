//! The daemon as a service: readiness, a socket that another has opened, the units.

use super::{Case, wait_until};
use e2e::contract::{Size, Under, selfpage};
use e2e::daemon::Settings;
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use e2e::{Daemon, Disks, Launch, Sandbox, workload};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub const CASES: &[(&str, Case)] = cases![
    systemd_is_told_when_the_daemon_is_ready => ready,
    a_socket_that_systemd_opened_is_used => activated,
    the_units_are_as_systemd_wants_them => units,
];

fn ready(disks: &Arc<Disks>, _: Size) -> Verdict {
    let sandbox = Sandbox::new("ready")?;
    let path = sandbox.join("notify");
    let heard = UnixDatagram::bind(&path).at("listen at", &path)?;
    let limit = heard.set_read_timeout(Some(Duration::from_secs(10)));
    limit.doing(|| "limit a wait".into())?;
    let mut daemon = Daemon::prepare(disks, &Settings::new(64))?;
    daemon.variable("NOTIFY_SOCKET", &path.display().to_string());
    let hear = |what: &str| {
        let mut text = [0; 256];
        let len = heard.recv(&mut text).doing(|| format!("receive {what}"))?;
        let text = String::from_utf8_lossy(&text[..len]).into_owned();
        let said = text.lines().any(|line| line == what);
        ensure(said, || format!("received {text:?}, not {what:?}"))
    };
    daemon.again()?;
    hear("READY=1")?;
    daemon.signal(rustix::process::Signal::HUP)?;
    hear("RELOADING=1")?;
    hear("READY=1")?;
    daemon.end()?;
    hear("STOPPING=1")
}

fn activated(disks: &Arc<Disks>, _: Size) -> Verdict {
    if workload::find("systemd-socket-activate").is_none() {
        return skipped("systemd-socket-activate is not installed (Debian package systemd)");
    }
    let mut daemon = Daemon::prepare(disks, &Settings::new(64))?;
    let socket = daemon.socket();
    daemon.through(&[
        "systemd-socket-activate".as_ref(),
        "--seqpacket".as_ref(),
        "--listen".as_ref(),
        socket.as_os_str(),
    ]);
    daemon.launch()?;
    wait_until("systemd-socket-activate listens", || Ok(socket.exists()))?;
    let sandbox = Sandbox::new("activated")?;
    // Two, one after the other: a daemon that accepted the first connection must also serve it.
    for _ in 0..2 {
        let outcome = Launch::new(&sandbox, "/bin/echo")
            .arg("started")
            .run(&Under::Contract(daemon.terms(16, 32)))?
            .succeeded()?;
        ensure(outcome.text() == "started\n", || "it did not run".into())?;
    }
    daemon.has_everything_back()
}

/// With the program in its place, as after an installation.
fn units(_: &Arc<Disks>, _: Size) -> Verdict {
    if workload::find("systemd-analyze").is_none() {
        return skipped("systemd-analyze is not installed (Debian package systemd)");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sandbox = Sandbox::new("units")?;
    let program = selfpage()?;
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]);
    let of_daemon = ["selfpage.service", "selfpage.socket"].map(|name| ("daemon/units", name));
    for (folder, name) in of_daemon
        .into_iter()
        .chain([("manager/units", "selfpage-vm.service")])
    {
        let (from, to) = (root.join(folder).join(name), sandbox.join(name));
        let text = std::fs::read_to_string(&from).at("read", &from)?;
        let text = text.replace("/usr/bin/selfpage", &program.display().to_string());
        std::fs::write(&to, text).at("write", &to)?;
        command.arg(to);
    }
    let done = command.output().doing(|| "run systemd-analyze".into())?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let ours = said.lines().any(|line| line.contains("selfpage"));
    ensure(done.status.success() && !ours, || {
        format!("{}: {said}", done.status)
    })
}
