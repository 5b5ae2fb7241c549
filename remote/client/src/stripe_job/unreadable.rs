//! Pages of a stripe's part that no server can read, while another part is made again of them.
//!
//! Rule: one page keeps no other from being made again. It is made of other parts, or passed over: a read of it is
//! degraded then, as its source may be read again.

use super::{StripeJob, cancel};
use crate::copying::MOST_PASSED;
use crate::stripe_code::factors;
use crate::stripes;
use crate::transport::RemoteTransport;
use disk::time::Time;

impl StripeJob {
    /// Has the next page be made without an object. Returns false if too few others are left.
    fn leave_out(&mut self, transport: &RemoteTransport, object: usize) -> bool {
        let stripe = transport.stripes.get(self.stripe);
        let Some((stripe, target)) = stripe.zip(self.targets.first()) else {
            return false;
        };
        self.failed.extend(stripe.part_of(object));
        let sources = stripes::sources_of(transport, target.object, &self.failed);
        let Some(sources) = sources else {
            return false;
        };
        for (object, source) in self.sources.iter_mut().zip(&sources) {
            *object = stripe.parts[*source];
        }
        for target in &mut self.targets {
            target.factors = factors(target.part, &sources).unwrap_or(target.factors);
        }
        true
    }
}

/// No server can read pages of a source: the run is read page by page, and a page that fails alone is made of others.
pub fn on_unreadable(transport: &mut RemoteTransport, number: u32, now: Time) {
    let is_of = |job: &mut StripeJob| !job.is_first && job.reading.iter().any(|it| it.0 == number);
    let Some(mut job) = transport.stripes.job.take_if(is_of) else {
        return;
    };
    cancel(transport, &job);
    let reading = std::mem::take(&mut job.reading);
    let count = std::mem::take(&mut job.count) as u64;
    job.unsent = 0..0;
    let of_source = reading.iter().find(|it| it.0 == number);
    let source = of_source.map_or(0, |(_, place)| job.sources[*place]);
    if count > 1 {
        job.single_until = job.next + count;
    } else if !job.leave_out(transport, source) {
        job.passed.push((job.next, source));
        job.failed.clear();
        job.next += 1;
    }
    match job.passed.len() > MOST_PASSED {
        true => stripes::on_job_failed(transport, job.stripe, now),
        false => transport.stripes.job = Some(job),
    }
}

/// Notes the pages that an object was made again without.
pub(super) fn name_passed(transport: &mut RemoteTransport, job: &StripeJob, object: usize) {
    for (page, source) in &job.passed {
        transport.objects.get(object).unreadable.insert(*page);
        transport.objects.get(*source).unreadable.insert(*page);
        let (id, of) = (transport.objects.id(object), transport.objects.id(*source));
        tracing::error!("page {page} of {id} is not made again: no server can read that of {of}");
    }
}
