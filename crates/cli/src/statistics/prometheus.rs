//! All that was counted in Prometheus's text format.

use super::reading::Reading;
use super::report::{EVENTS, calls_of};
use engine::statistics::{CallClass, LATENCY_CLASSES, latency_bound_ns};
use pmem::BLOCK_BYTES;
use std::fmt::Write;

/// The text.
pub fn text(reading: &Reading) -> String {
    // As typed, it would differ between two scrapers of one image.
    let path = reading.image.canonicalize().unwrap_or_else(|_| reading.image.clone());
    let mut text = Text { text: String::new(), image: label(&path.to_string_lossy()) };
    text.family("directfs_image_info", "gauge", "Label and UUID of the image; the value is 1.");
    text.sample("directfs_image_info", &[("label", &reading.label), ("uuid", &reading.uuid)], 1.0);
    text.calls(reading);
    text.requests(reading);
    text.family("directfs_events_total", "counter", "Work beside calls, by kind.");
    for (event, name, ..) in EVENTS {
        text.sample("directfs_events_total", &[("event", name)], reading.totals.events_of(event) as f64);
    }
    text.family("directfs_processes", "gauge", "Processes that use the image.");
    text.sample("directfs_processes", &[], reading.users.processes.len() as f64);
    text.family("directfs_waiting", "gauge", "Threads that wait for locks.");
    let waiting: usize = reading.users.processes.iter().map(|process| process.waits.len()).sum();
    text.sample("directfs_waiting", &[], waiting as f64);
    if let Some((space, _)) = reading.space {
        text.family("directfs_bytes", "gauge", "Space for files.");
        text.sample("directfs_bytes", &[("state", "free")], (space.blocks_free * BLOCK_BYTES) as f64);
        let used = space.blocks - space.blocks_free;
        text.sample("directfs_bytes", &[("state", "used")], (used * BLOCK_BYTES) as f64);
    }
    if let Some(commits) = reading.commits {
        text.family("directfs_commits_total", "counter", "Commits to the disk since the image was opened.");
        text.sample("directfs_commits_total", &[], commits.commits as f64);
        text.family("directfs_uncommitted_bytes", "gauge", "Changes that are not on the disk.");
        text.sample("directfs_uncommitted_bytes", &[], commits.uncommitted_bytes as f64);
        if let Some(age_ms) = commits.age_ms {
            text.family("directfs_commit_age_seconds", "gauge", "Time since the last commit to the disk.");
            text.sample("directfs_commit_age_seconds", &[], age_ms as f64 / 1e3);
        }
        text.family("directfs_commit_failed", "gauge", "1 if the last commit to the disk failed.");
        text.sample("directfs_commit_failed", &[], f64::from(u8::from(commits.errno.is_some())));
    }
    text.text
}

struct Text {
    text: String,
    image: String,
}

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{name}{{image=\"{}\"", self.image);
        for (key, value) in labels {
            let _ = write!(self.text, ",{key}=\"{}\"", label(value));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn calls(&mut self, reading: &Reading) {
        self.family("directfs_calls_total", "counter", "Calls that the image served in programs, by kind.");
        for class in CallClass::ALL {
            self.sample("directfs_calls_total", &[("call", class.name())], calls_of(&reading.totals, class) as f64);
        }
        let name = "directfs_sampled_call_seconds";
        self.family(name, "histogram", "Durations of some of the calls.");
        for class in CallClass::ALL {
            self.histogram(name, &[("call", class.name())], &reading.totals.latencies[class as usize]);
        }
    }

    fn requests(&mut self, reading: &Reading) {
        let name = "directfs_requests_total";
        self.family(name, "counter", "Requests of the kernel to the server of a mount, by kind.");
        let points: Vec<_> = reading.mounts.iter().map(|mount| mount.point.to_string_lossy().into_owned()).collect();
        for (mount, point) in reading.mounts.iter().zip(&points) {
            for totals in &mount.requests {
                self.sample(name, &[("mount", point), ("request", &totals.name)], totals.count as f64);
            }
        }
        let name = "directfs_sampled_request_seconds";
        self.family(name, "histogram", "Durations of some of the requests.");
        for (mount, point) in reading.mounts.iter().zip(&points) {
            for totals in &mount.requests {
                self.histogram(name, &[("mount", point), ("request", &totals.name)], &totals.latencies);
            }
        }
    }

    /// Buckets are cumulative. The sum is an upper bound: the times are known by their classes.
    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], latencies: &[u64; LATENCY_CLASSES]) {
        let (mut total, mut sum_s) = (0, 0.0);
        for (class, count) in latencies.iter().enumerate() {
            let bound_s = latency_bound_ns(class) as f64 / 1e9;
            (total, sum_s) = (total + count, sum_s + *count as f64 * bound_s);
            let bound = if class == LATENCY_CLASSES - 1 { "+Inf".to_owned() } else { bound_s.to_string() };
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, total as f64);
        }
        self.sample(&format!("{name}_sum"), labels, sum_s);
        self.sample(&format!("{name}_count"), labels, total as f64);
    }
}

/// A text as the value of a label.
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
