//! A report as it is printed: targets, then ratios, then what they come from.

use crate::arm::Arm;
use crate::machine::Machine;
use crate::pass::Pass;
use crate::report::{Report, Series};
use crate::statistics::Estimate;
use crate::target::{Bound, Verdict};
use std::fmt::{self, Display, Formatter};

/// Repeats below which the header says that there are few.
const ENOUGH: u64 = 5;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.header(f)?;
        self.targets(f)?;
        for threads in self.threads() {
            let passes = self.passes(threads);
            self.ratios(f, threads, &passes)?;
            self.times(f, threads, &passes)?;
            self.accesses(f, threads, &passes)?;
        }
        writeln!(f, "\narms")?;
        for arm in Arm::all() {
            if self.series.iter().any(|series| series.arm == *arm) {
                writeln!(f, "  {:<18}{}", arm.name(), arm.about())?;
            }
        }
        Ok(())
    }
}

impl Report {
    fn header(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Machine { load, .. } = &self.machine;
        for line in self.machine.lines() {
            writeln!(f, "{line}")?;
        }
        let (data, frames) = (self.data_bytes >> 20, self.frames_bytes >> 20);
        let swap = data * 3 / 2;
        let few = if self.repeats < ENOUGH {
            " (few: a quick look)"
        } else {
            ""
        };
        writeln!(
            f,
            "{data} MiB of data compressing 2:1 under lz4 over {frames} MiB of memory: frames, or a memory cgroup's limit\n\
             (page tables count in a cgroup); swap areas of {swap} MiB; 4 KiB pages; {} accesses in passes out of order,\n\
             after as many untimed as there are frames; {} interleaved and rotated runs{few}; contents verified;\n\
             load {load} at the start, {} at the end",
            self.accesses, self.repeats, self.load_at_end
        )
    }

    fn targets(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdicts = self.verdicts();
        if verdicts.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n{:<78}{:>14}{:>14}   {:<21}must be",
            "targets", "ours", "theirs", "ratio [95 %]"
        )?;
        for verdict in &verdicts {
            writeln!(f, "{}", Row(verdict))?;
        }
        Ok(())
    }

    fn ratios(&self, f: &mut Formatter<'_>, threads: u64, passes: &[Pass]) -> fmt::Result {
        let with = self.series.iter().filter(|s| s.threads == threads);
        let pairs: Vec<_> = with
            .flat_map(|s| s.arm.rivals().iter().map(move |rival| (s.arm, *rival)))
            .filter(|(_, rival)| self.series(*rival, threads).is_some())
            .collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let what = "our time / their time [95 %]";
        writeln!(f, "\n{}", head(what, threads, passes))?;
        for (arm, rival) in pairs {
            write!(f, "{:<32}", format!("{} / {}", arm.name(), rival.name()))?;
            for pass in passes {
                let ratio = self.ratio(arm, rival, threads, *pass);
                write!(f, "{:>20}", shown(ratio))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn times(&self, f: &mut Formatter<'_>, threads: u64, passes: &[Pass]) -> fmt::Result {
        writeln!(f, "\n{}", head("us a page [95 %]", threads, passes))?;
        self.rows(f, threads, passes, |series, pass| {
            shown(series.time(pass).map(|t| t.times(1e-3)))
        })
    }

    fn accesses(&self, f: &mut Formatter<'_>, threads: u64, passes: &[Pass]) -> fmt::Result {
        let passes: Vec<_> = passes.iter().copied().filter(|p| !p.in_order()).collect();
        if passes.is_empty() {
            return Ok(());
        }
        let what = "us p50, p99; hits";
        writeln!(f, "\n{}", head(what, threads, &passes))?;
        self.rows(f, threads, &passes, |series, pass| {
            let hits = series
                .hit_rate(pass)
                .map_or_else(|| "-".into(), |rate| format!("{:.0} %", rate * 100.0));
            series.latency(pass).map_or_else(String::new, |(p50, p99)| {
                format!("{}, {}; {hits}", short(p50 / 1e3), short(p99 / 1e3))
            })
        })
    }

    fn rows(
        &self,
        f: &mut Formatter<'_>,
        threads: u64,
        passes: &[Pass],
        cell: impl Fn(&Series, Pass) -> String,
    ) -> fmt::Result {
        for series in self.series.iter().filter(|s| s.threads == threads) {
            write!(f, "{:<32}", series.arm.name())?;
            match &series.failure {
                Some(failure) => write!(f, "  cannot: {failure}")?,
                None => {
                    for pass in passes {
                        write!(f, "{:>20}", cell(series, *pass))?;
                    }
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn head(what: &str, threads: u64, passes: &[Pass]) -> String {
    let heads: String = passes.iter().map(|p| format!("{:>20}", p.name())).collect();
    let many = if threads == 1 { "" } else { "s" };
    format!("{threads} thread{many}\n{what:<32}{heads}")
}

/// An estimate in its interval.
fn shown(estimate: Option<Estimate>) -> String {
    let in_interval = |Estimate { median, low, high }| {
        format!("{} [{},{}]", short(median), short(low), short(high))
    };
    estimate.map_or_else(|| "-".to_owned(), in_interval)
}

/// Three digits, or more before the point.
fn short(value: f64) -> String {
    let digits = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A target's line.
struct Row<'a>(&'a Verdict);

impl Display for Row<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let target = &self.0.target;
        let (unit, must_be) = match target.bound {
            Bound::TimeAtMost(most) => ("us", format!("time <= {most:.2}")),
            Bound::ThroughputAtLeast(least) => ("k/s", format!("rate >= {least:.2}")),
        };
        let name = format!("{} / {}", target.name, target.theirs.name());
        let outcome = match &self.0.outcome {
            Ok(outcome) => outcome,
            Err(why) => return write!(f, "{name:<78}  {must_be}: cannot say, {why}"),
        };
        let figure = |ns: Estimate| {
            let value = match target.bound {
                Bound::TimeAtMost(_) => ns.median / 1e3,
                Bound::ThroughputAtLeast(_) => 1e6 / ns.median,
            };
            format!("{value:.2} {unit}")
        };
        write!(
            f,
            "{name:<78}{:>14}{:>14}   {:<21}{must_be}: {}",
            figure(outcome.ours),
            figure(outcome.theirs),
            shown(Some(outcome.ratio)),
            outcome.word()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExperimentError;
    use crate::report::made_up::{report, series};

    #[test]
    fn targets_come_first_then_ratios_then_figures() {
        let text = report(vec![
            series(Arm::LinkedRam, &[10, 12, 14]),
            series(Arm::SwapZram, &[24, 23, 25]),
        ])
        .to_string();
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("{what} in {text}"))
        };
        assert!(at("\ntargets") < at("our time / their time"));
        assert!(at("our time / their time") < at("us a page"));
        let line = text.lines().find(|l| l.contains("linked / swap-zram"));
        assert!(line.unwrap().contains("0.50 [0.40,0.61]   "), "{line:?}");
        assert!(text.contains("(few: a quick look)"));
        assert!(text.contains("90 %"));
    }

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<_> = [0.123, 1.234, 12.34, 123.4, 12_345.6].map(short).into();
        assert_eq!(shown, ["0.12", "1.23", "12.3", "123", "12346"]);
    }

    #[test]
    fn an_arm_that_cannot_run_says_why() {
        let mut gone = series(Arm::SwapFile, &[1]);
        gone.failure = Some(ExperimentError::Unavailable("no root".into()));
        let ours = series(Arm::LinkedDisk, &[1]);
        let text = report(vec![ours, gone]).to_string();
        assert!(text.contains("cannot: no root"));
        assert!(text.contains("cannot say, swap-file: no root"));
    }
}
