//! What the cache of HTTP responses has.

use std::sync::Arc;

use csp_cache::Store;
use csp_telemetry::{MetricSource, MetricWriter};

/// The cache of HTTP responses, which all workers share.
pub struct CacheMetrics(pub Arc<Store>);

impl MetricSource for CacheMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let status = self.0.status();
        let help = "HTTP responses in the cache";
        out.gauge("csp_http_cache_objects", help, &[], status.objects as f64);
        let help = "Memory of HTTP responses in the cache, in bytes";
        out.gauge("csp_http_cache_bytes", help, &[], status.bytes as f64);
        let help = "Most memory of HTTP responses in the cache, in bytes";
        out.gauge("csp_http_cache_bytes_max", help, &[], status.bytes_max as f64);
        let help = "HTTP responses that were stored in the cache";
        out.counter("csp_http_cache_stored_total", help, &[], status.stored);
        let help = "HTTP responses that have left the cache, since others needed their memory";
        out.counter("csp_http_cache_evicted_total", help, &[], status.evicted);
        let help = "HTTP responses that were purged from the cache, or that a request has made wrong";
        out.counter("csp_http_cache_purged_total", help, &[], status.purged);
    }
}
