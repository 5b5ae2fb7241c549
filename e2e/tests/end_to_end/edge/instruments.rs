//! Programs under instruments: a debugger, and the compiler's sanitizers.

use super::script;
use e2e::Sandbox;
use e2e::verdict::{Doing, Verdict, ensure, skipped};
use std::process::Command;

/// A program whose runtime stands in front of the C library's functions, and looks at all of the
/// process's threads.
const SANITIZED: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char *blocks[32];
static void *sum(void *arg)
{
    long *total = arg;
    for (int i = 0; i < 32; i++)
        for (int at = 0; at < 1 << 18; at += 512)
            *total += blocks[i][at];
    return NULL;
}
int main(void)
{
    pthread_t threads[4];
    long totals[4] = {0};
    for (int i = 0; i < 32; i++)
        blocks[i] = memset(malloc(1 << 18), i, 1 << 18);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, sum, &totals[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld\n", totals[0], totals[3]);
    for (int i = 0; i < 32; i++)
        free(blocks[i]);
    return 0;
}
"#;

/// gdb has the program's `malloc` make room for a string that it passes to a function.
pub fn debugger() -> Verdict {
    let sandbox = Sandbox::new("debugger")?;
    let command = "gdb -q -batch -ex 'set breakpoint pending on' -ex 'break exit' -ex run -ex 'print (int)atoi(\"37\")' /bin/echo";
    let (native, _) = script(&sandbox, command)?;
    let prints = |stdout: &[u8]| String::from_utf8_lossy(stdout).contains("$1 = 37");
    if !prints(&native.stdout) {
        return skipped("gdb is missing here, or cannot trace");
    }
    let (paged, said) = script(
        &sandbox,
        &format!("$RUN --frames 16M --store ram:256M -- {}", command),
    )?;
    ensure(prints(&paged.stdout), || {
        let stdout = String::from_utf8_lossy(&paged.stdout);
        format!("its output: {stdout}{said}")
    })?;
    sandbox.check_clean()
}

pub fn sanitizers() -> Verdict {
    let sandbox = Sandbox::new("sanitizers")?;
    let source = sandbox.join("program.c");
    std::fs::write(&source, SANITIZED).doing(|| "write a program".into())?;
    let mut ran = 0;
    for (name, options) in [
        ("address", "-fsanitize=address -static-libasan"),
        ("thread", "-fsanitize=thread -static-libtsan"),
        ("undefined", "-fsanitize=undefined -static-libubsan"),
        ("shared-address", "-fsanitize=address"),
        ("shared-thread", "-fsanitize=thread"),
        ("shared-leak", "-fsanitize=leak"),
    ] {
        let program = sandbox.join(name);
        let built = Command::new("cc")
            .args(["-O1", "-g", "-pthread"])
            .args(options.split(' '))
            .arg("-o")
            .args([&program, &source])
            .output()
            .doing(|| "run cc (install gcc)".into())?;
        let bare = Command::new(&program).output();
        let Some(bare) = bare
            .ok()
            .filter(|it| built.status.success() && it.status.success())
        else {
            eprintln!("SKIPPED: the compiler has no {name} sanitizer that runs here");
            continue;
        };
        let command = format!(
            "$RUN --frames 16M --store ram:256M -- {}",
            program.display()
        );
        let (paged, said) = script(&sandbox, &command)?;
        ensure(
            paged.status.success() && paged.stdout == bare.stdout,
            || {
                format!(
                    "{name}: {:?} {:?}; its output:\n{said}",
                    paged.status, paged.stdout
                )
            },
        )?;
        ran += 1;
    }
    match ran {
        0 => skipped("the compiler has no sanitizers that run here"),
        _ => sandbox.check_clean(),
    }
}
