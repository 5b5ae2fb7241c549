//! A run that `selfpage run` itself refuses: before the program starts, with a status of its
//! own and a message for the user.

use crate::contract::selfpage;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, ensure};
use std::process::{Command, Output, Stdio};

/// The status of a failure of the command's own: the program's never began.
pub const STATUS: i32 = 125;

/// The shortest message that can name the request and the next step.
const SENTENCE: usize = 20;

/// Insists that `selfpage run` with these options refuses to run a program; what it says.
pub fn of_options(sandbox: &Sandbox, options: &[&str]) -> Verdict<String> {
    let output = Command::new(selfpage()?)
        .arg("run")
        .args(options)
        .args(["--", "/bin/echo", "started"])
        .envs(sandbox.environment())
        .current_dir(sandbox.path())
        .stdin(Stdio::null())
        .output()
        .doing(|| "run selfpage".into())?;
    insist(&options.join(" "), &output)
}

/// Insists that a run whose program would have printed something ended as a refusal; returns
/// its message. `asked` describes the run in the failure.
pub fn insist(asked: &str, output: &Output) -> Verdict<String> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.code() == Some(STATUS), || {
        format!(
            "{asked}: {:?}, not {STATUS}; its output: {said}",
            output.status
        )
    })?;
    ensure(output.stdout.is_empty(), || {
        format!("{asked}: the program was started")
    })?;
    let is_sentence = said.trim().len() > SENTENCE && !said.contains("panicked");
    ensure(is_sentence, || {
        format!("{asked}: its only output: {said:?}")
    })?;
    Ok(said)
}
